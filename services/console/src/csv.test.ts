import { expect, test } from "vitest";
import { csv } from "./csv.ts";

test("cells are quoted where they must be, and never formulas", () => {
	expect(
		csv(
			["a", "b"],
			[
				["x", 1.5],
				['say "hi", then\ngo', -2],
				["=HYPERLINK(1)", 0],
				["-1+2", 0],
			],
		),
	).toBe('a,b\r\nx,1.5\r\n"say ""hi"", then\ngo",-2\r\n\'=HYPERLINK(1),0\r\n\'-1+2,0\r\n');
});

import { expect, test } from "vitest";
import { effectWords } from "./effect.ts";

test("what a call changes, and what a crash does", () => {
	expect(effectWords({ effect: "same_tx", acts_outside: false })).toEqual({
		changes: "Changes documents of this workspace.",
		afterCrash: "Runs again, and takes effect once.",
	});
	expect(effectWords({ effect: "unsafe", acts_outside: true }).changes).toBe("Changes or sends something outside of Signalbox.");
	expect(effectWords({ effect: "unsafe", acts_outside: false }).changes).toBe(""); // its server does not say
});

import { expect, test } from "vitest";
import { noteServerDate, serverNow } from "./servertime.ts";

const at = (time: string) => Date.parse(`2026-11-24T${time}Z`);
const date = (time: string) => new Date(at(time)).toUTCString();

test("the server's clock is known from its answers, also when it is set or the browser's is", () => {
	expect(serverNow(at("12:00:00"))).toBe(at("12:00:00"));
	noteServerDate(null);
	noteServerDate("soon");
	noteServerDate(date("12:00:00"), at("12:00:01.500")); // whole seconds, and on the way
	expect(serverNow(at("12:00:02"))).toBe(at("12:00:02"));
	const fast = () => {
		noteServerDate(date("12:00:10"), at("12:02:10.100"));
		noteServerDate(date("12:00:12"), at("12:02:12.900"));
	};
	for (let i = 0; i < 8; i++) fast();
	expect(serverNow(at("12:02:13"))).toBe(at("12:00:12.900"));
	for (let i = 0; i < 16; i++) noteServerDate(date("12:00:20"), at("11:59:00.200"));
	expect(serverNow(at("11:59:01"))).toBe(at("12:00:20.800"));
});

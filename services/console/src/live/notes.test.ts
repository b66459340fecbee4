import { expect, test } from "vitest";
import { timeOn } from "../words.ts";
import { noteOfEnd, noteOfError } from "./notes.ts";

test("an account that cannot answer is told apart from other failures", () => {
	const limited = "All 2 accounts for the provider anthropic are paused after failures: the first will be tried again in 18m0s.";
	expect(noteOfError("r", limited, "MODEL_SERVER")).toMatchObject({ title: "No account could answer.", about: "accounts" });
	const back = "2026-11-25T14:50:00Z";
	expect(noteOfError("r", limited, "MODEL_RATE_LIMIT", back)).toMatchObject({ back });
	expect(noteOfError("r", "The provider account has no credit or quota left.", "MODEL_QUOTA")).toMatchObject({ about: "accounts" });
	expect(noteOfError("r", "The conversation is too long for this model.", "MODEL_CONTEXT_LENGTH")).toMatchObject({
		title: "The run stopped.",
	});
});

test("a spent budget says which, and when runs go on", () => {
	const at = "2026-11-25T00:00:00Z";
	const detail = `Today's budget of the workspace, $8.00, is spent. Runs go on at ${at}, or when an owner raises it.`;
	expect(noteOfEnd("r", "budget-cost", detail)).toMatchObject({
		title: "Today's budget of the workspace, $8.00, is spent.",
		text: `Runs go on at ${timeOn(at)}, or when an owner raises it.`,
		about: "budget",
	});
	expect(noteOfEnd("r", "budget-steps", "")).toMatchObject({ title: "The budget is spent." });
});

test("limits of steps and time", () => {
	expect(noteOfEnd("r", "max-steps", "", 1)?.title).toBe("Stopped after 1 step.");
	expect(noteOfEnd("r", "max-time")?.title).toBe("The run reached its time limit.");
	expect(noteOfEnd("r", "stop")).toBeNull();
});

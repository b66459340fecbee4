/** The words of a conversation about what happened to a run. */
import { durationWords, workerOf } from "../run/figures.ts";
import { timeOn } from "../words.ts";
import type { Note } from "./conversation.ts";

/** The reason, in agent-runner's words, of a step that another worker repeats. */
export const runnerLost = "the runner was lost: this step begins again";

/** What is said of a run whose worker shuts down. */
export const paused = "Paused between steps: a deploy is going on. Goes on by itself.";

/** The note about a step that is repeated. */
export function noteOfRetry(run: string, place: number, reason: string): Note {
	const text =
		reason === runnerLost
			? takeoverWords()
			: reason
				? `This step is written again: ${reason}`
				: "This step is written again. Nothing was lost.";
	return { kind: "note", key: `${run}/retry/${place}`, tone: "note", title: "", text, code: reason, run };
}

/** A takeover: the claim that went on with the run, the one before, and the time between them in ms. */
export interface Taken {
	claim: number;
	from: number;
	ms: number;
}

/** What is said of a takeover; without it before it is known. */
export const takeoverWords = (t?: Taken): string =>
	`${t ? `Worker ${workerOf(t.claim)} took over from worker ${workerOf(t.from)} after ${durationWords(t.ms)}` : "Another worker took over"}. Nothing was lost.`;

/** Failures for which the account is to blame, by their codes, and by the words of credential-broker. */
const accountCodes = new Set(["MODEL_RATE_LIMIT", "MODEL_QUOTA", "MODEL_AUTH"]);
const accountWords = /\b(accounts?|credential) for the provider \S/;

const kept = "What was done so far is kept.";

/** The note at the end of a run that failed. */
export function noteOfError(run: string, text: string, code: string | undefined, back?: string): Note {
	const note = { kind: "note", key: `${run}/end`, tone: "stop", code, run, back } as const;
	if (accountCodes.has(code ?? "") || accountWords.test(text))
		return { ...note, title: "No account could answer.", text, kept, about: "accounts" };
	return { ...note, title: "The run stopped.", text };
}

/** The note at the end of a run that did not end by itself; null for one that did. */
export function noteOfEnd(run: string, reason: string, detail = "", steps?: number): Note | null {
	const note = (tone: Note["tone"], title: string, text: string, about?: Note["about"]): Note => ({
		kind: "note",
		key: `${run}/end`,
		tone,
		title,
		text,
		code: reason,
		about,
		run,
	});
	switch (reason) {
		case "stop":
			return null;
		case "cancelled":
			return note("plain", "", "Stopped. What was said is kept.");
		case "max-steps":
			return note(
				"wait",
				steps ? `Stopped after ${steps} ${steps === 1 ? "step" : "steps"}.` : "Stopped at the step limit.",
				detail || "The agent had more in mind.",
				"steps",
			);
		case "max-time":
			return note("wait", "The run reached its time limit.", detail || "What was said is kept.");
		case "max-step-time":
			return note("wait", "The model took too long over one step.", detail || "What was said is kept.");
		case "length":
			return note("wait", "The answer reached its length limit.", detail || "Ask the agent to go on.");
	}
	if (!reason.startsWith("budget")) return note("plain", "", detail || `Ended: ${reason}.`);
	const [, title, text] = /^(.* is spent\.) *(.*)$/s.exec(detail) ?? ["", "The budget is spent.", detail];
	return note(
		"wait",
		title ?? "",
		(text ?? "").replace(/\d{4}-\d\d-\d\dT[\d:]+Z/g, (t) => timeOn(t)),
		"budget",
	);
}

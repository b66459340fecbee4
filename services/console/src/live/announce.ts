/** What a screen reader says of a conversation, in place of its stream: whole sentences only. */
import { count, toolWords } from "../words.ts";
import { answerEndingAt, type Call, type Question, type View } from "./conversation.ts";

/**
 * Returns a function that says the newest thing that happened, given each view in turn. It says nothing
 * of a run that it has not seen active, such as that of another version or what was there already.
 */
export function announcer(): (v: View) => string {
	let seen = new Set<string>();
	return (v) => {
		const run = v.lines.at(-1)?.run ?? "";
		if (v.active) seen.add(v.active.run);
		else seen = new Set([...seen].filter((r) => r === run));
		return seen.has(run) ? happened(v) : "";
	};
}

/** The newest thing that happened; empty if nothing did that is worth a sentence. */
export function happened({ lines, active }: Pick<View, "lines" | "active">): string {
	const last = lines.at(-1);
	const before = lines.at(-2);
	if (last?.kind === "note") return [last.title, last.text, last.kept].filter(Boolean).join(" ");
	if (last?.kind !== "step") return "";
	if (active?.run === last.run) {
		// Not while calls arrive: their number would be said as it grows.
		if (last.calls.length > 0) return last.calls.some((c) => c.state === "arriving") ? "" : callWords(last.calls);
		// One that begins again was announced, and why it does is still said.
		if (before?.kind === "note" && before.run === last.run) return happened({ lines: [before], active });
		return last.index === 0 ? "Answer began" : "";
	}
	const words = answerEndingAt(lines, lines.length - 1).flatMap((s) => s.text.split(/\s+/).filter(Boolean)).length;
	return `Answer finished, ${count(words)} ${words === 1 ? "word" : "words"}`;
}

/** The questions that wait for a person, and to one who may answer what a message does then. */
export function asked(questions: readonly Question[], answers: boolean): string {
	const about = (unknown: boolean) => questions.filter((q) => q.ask.outcomeUnknown === unknown).map((q) => toolWords(q.call.tool));
	const approvals = about(false);
	const unknown = about(true);
	return [
		approvals.length > 0 ? `Approval wanted: ${approvals.join(", ")}` : "",
		approvals.length > 0 && answers ? `A message that you begin now refuses ${approvals.length === 1 ? "it" : "all of them"}` : "",
		unknown.length > 0 ? `Did it happen? The worker died meanwhile: ${unknown.join(", ")}` : "",
	]
		.filter(Boolean)
		.join(". ");
}

const verbs: Record<string, [one: string, several: string]> = {
	doc_create: ["Creates a document", "Creates # documents"],
	doc_read: ["Reads a document", "Reads # documents"],
	doc_edit: ["Edits a document", "Makes # edits"],
	doc_append: ["Writes in a document", "Writes in documents # times"],
	doc_list: ["Lists documents", "Lists documents # times"],
	doc_delete: ["Deletes a document", "Deletes # documents"],
	web_search: ["Searches the web", "Searches the web # times"],
	browser_read: ["Reads a page", "Reads # pages"],
	notion_read_page: ["Reads a page of Notion", "Reads # pages of Notion"],
};
const numbers = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/** What a step's calls do: "Reads three documents, searches the web". */
function callWords(calls: readonly Call[]): string {
	const times = new Map<string, number>();
	for (const c of calls) times.set(c.tool, (times.get(c.tool) ?? 0) + 1);
	const said = [...times].map(([tool, n]) => {
		const name = toolWords(tool).replace(", ", " of "); // a server's tool has its server behind a comma, as lists have here
		const [one, several] = verbs[tool] ?? [`Uses ${name}`, `Uses ${name} # times`];
		return n === 1 ? one : several.replace("#", numbers[n] ?? String(n));
	});
	return said.map((s, i) => (i === 0 ? s : s.charAt(0).toLowerCase() + s.slice(1))).join(", ");
}

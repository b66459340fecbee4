/** Words and figures as the console writes them. */
import type { Schemas } from "@signalbox/client";
import type { SignalName } from "./parts/Signal.tsx";

/** A tool's name in words: doc_create is "Create document". */
export function toolWords(name: string): string {
	const known: Record<string, string> = {
		doc_create: "Create document",
		doc_read: "Read document",
		doc_edit: "Edit document",
		doc_append: "Append to document",
		doc_list: "List documents",
		doc_delete: "Delete document",
		get_current_datetime: "What time is it",
		web_search: "Search the web",
		calendar_list_events: "List events",
		calendar_create_event: "Create event",
		calendar_update_event: "Change event",
		calendar_delete_event: "Delete event",
		tasks_list: "List tasks",
		tasks_create: "Add task",
		tasks_complete: "Complete task",
		tasks_delete: "Delete task",
		notion_search: "Search Notion",
		notion_read_page: "Read Notion page",
		notion_append: "Append to Notion page",
		read_research: "Read research",
		browser_open: "Open page",
		browser_read: "Read page",
		browser_click: "Click",
		browser_type: "Type",
		browser_screenshot: "Take a picture",
	};
	const said = known[name];
	if (said) return said;
	const mcp = /^mcp__(.+?)__(.+)$/.exec(name);
	const words = (mcp?.[2] ?? name).replaceAll(/[_-]+/g, " ");
	return words.charAt(0).toUpperCase() + words.slice(1) + (mcp ? `, ${mcp[1]}` : "");
}

/** A text, such as the server's error, as a sentence. */
export function sentence(text: string): string {
	const t = text.trim();
	return t ? t.charAt(0).toUpperCase() + t.slice(1) + (/[.!?…]$/.test(t) ? "" : ".") : "";
}

/** Says that the line is back: after so many ms, in which so many events came, if that is known. */
export function backWords(away: number, missed: number | undefined): string {
	const s = `${Math.round(away / 1000)} s`;
	if (missed === undefined) return `Back on the line after ${s}. What happened meanwhile is here.`;
	if (missed === 0) return `Back on the line after ${s}. You missed nothing.`;
	return `Back on the line. You missed ${missed === 1 ? "one event" : `${count(missed)} events`} in ${s}; ${missed === 1 ? "it is" : "all of them are"} here.`;
}

/** A provider's name as it writes it. */
export function providerName(provider: string): string {
	const known: Record<string, string> = {
		anthropic: "Anthropic",
		openai: "OpenAI",
		openrouter: "OpenRouter",
		google: "Google",
		github: "GitHub",
		notion: "Notion",
	};
	return known[provider] ?? (provider.startsWith("mcp-") ? `MCP server ${provider.slice(4)}` : provider);
}

/** The argument that tells most about a call. */
export function tellingArgument(args: unknown): string {
	if (typeof args !== "object" || args === null) return "";
	const all = args as Record<string, unknown>;
	for (const key of ["name", "title", "query", "q", "path", "url", "selector", "old_text", "timezone", "text", "id"]) {
		const v = all[key];
		if (typeof v === "string" && v) return firstLine(v);
	}
	const first = Object.values(all).find((v) => typeof v === "string" && v);
	return typeof first === "string" ? firstLine(first) : "";
}

const firstLine = (text: string) => text.split("\n", 1)[0]?.slice(0, 200) ?? "";

/** Tokens: 812, 1.2k, 34k, 61.8M. */
export function tokens(n: number): string {
	if (n < 1000) return String(n);
	if (n >= 999_500) return `${(n / 1_000_000).toFixed(1)}M`;
	return n < 10_000 ? `${(n / 1000).toFixed(1)}k` : `${Math.round(n / 1000)}k`;
}

/** A count with its thousands apart: 2,316. */
export const count = (n: number): string => n.toLocaleString("en");

/** Money from millionths of a dollar: $0.043 under a dollar, else to the cent. */
export function money(micros: number): string {
	const dollars = micros / 1_000_000;
	if (micros > 0 && micros < 500) return "under $0.001";
	return micros > 0 && micros < 999_500
		? `$${dollars.toFixed(3)}`
		: `$${dollars.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

/** A clock of a run: 0:43, 12:05, 1:02:03. */
export function clock(ms: number): string {
	const s = Math.max(0, Math.floor(ms / 1000));
	const two = (n: number) => String(n).padStart(2, "0");
	return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

/** A time: relative under an hour, then the clock, then the date. */
export function ago(at: string, now = Date.now()): string {
	const t = Date.parse(at);
	const minutes = Math.floor((now - t) / 60_000);
	if (minutes < 1) return "now";
	if (minutes < 60) return `${minutes} min`;
	const day = new Date(t);
	if (new Date(now).toDateString() === day.toDateString()) return timeOfDay(at);
	return day.toLocaleDateString(undefined, {
		day: "numeric",
		month: "short",
		...(day.getFullYear() === new Date(now).getFullYear() ? {} : { year: "numeric" }),
	});
}

/** A time under the heading of its day: relative under an hour, then the clock. */
export function agoThatDay(at: string, now = Date.now()): string {
	return now - Date.parse(at) < 3_600_000 ? ago(at, now) : timeOfDay(at);
}

/** How long something is so: "just now", "for 12 min", then "since 13:02" and "since 3 Nov". */
export function since(at: string, now = Date.now()): string {
	const t = ago(at, now);
	return t === "now" ? "just now" : t.endsWith(" min") ? `for ${t}` : `since ${t}`;
}

/** 14:31 */
export function timeOfDay(at: string): string {
	return new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
}

/** A time to come or gone by: 14:31, and on another day than today 14:31 on 3 Nov. */
export function timeOn(at: string, now = Date.now()): string {
	const day = new Date(at);
	if (day.toDateString() === new Date(now).toDateString()) return timeOfDay(at);
	return `${timeOfDay(at)} on ${day.toLocaleDateString(undefined, { day: "numeric", month: "short" })}`;
}

/** How long until a time: 23 h 48 min, 4 min. */
export function until(at: string, now = Date.now()): string {
	const m = Math.max(0, Math.round((Date.parse(at) - now) / 60_000));
	return m < 60 ? `${m} min` : `${Math.floor(m / 60)} h ${m % 60} min`;
}

/** When what failed may succeed: "It is back at 14:50, in 18 min." */
export function backAt(at: string, now = Date.now()): string {
	return Date.parse(at) > now ? `It is back at ${timeOn(at, now)}, in ${until(at, now)}.` : `It was to be back at ${timeOn(at, now)}.`;
}

/** "Today", "Yesterday", or the date: the heading over sessions of one day. */
export function dayOf(at: string, now = Date.now()): string {
	const day = new Date(at).toDateString();
	if (day === new Date(now).toDateString()) return "Today";
	if (day === new Date(now - 86_400_000).toDateString()) return "Yesterday";
	return new Date(at).toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long" });
}

/** Who answered a question about a call, and what: "Approved by Ines, 14:43". */
export function decisionWords(
	{ decision, at, reason }: { decision: string; at?: string | undefined; reason?: string | undefined },
	who: string,
	now = Date.now(),
): string {
	const by = who === "You" ? "you" : who;
	const said =
		{
			approved: `Approved by ${by}`,
			refused: `Refused by ${by}`,
			expired: "Refused: nobody answered in time",
			happened: `${who} said that it happened`,
			repeat: `${who} had it done again`,
		}[decision] ?? decision;
	return `${said}${at ? `, ${timeOn(at, now)}` : ""}${reason ? `: ${reason}` : ""}`;
}

/** A session as a list has it. */
type Listed = Pick<Schemas["Session"], "state" | "last_run">;

/** What a session does now, or how its newest run ended if that was not with an answer; empty if there is nothing to say. */
export function sessionWords({ state, last_run }: Listed): string {
	if (state === "idle") return last_run?.state === "failed" ? "Failed" : last_run?.state === "cancelled" ? "Stopped" : "";
	return { queued: "Begins soon", running: "Running", waiting: "Waits for an answer" }[state];
}

/** The signal of a session: what it does now, or how its newest run ended; of "failures" only that it failed. */
export function sessionSignal({ state, last_run }: Listed, endings: "all" | "failures" = "all"): SignalName {
	if (state !== "idle") return state;
	if (last_run?.state === "failed") return "failed";
	if (endings === "failures") return "idle";
	return last_run?.state === "cancelled" ? "stopped" : last_run?.state === "done" ? "done" : "idle";
}

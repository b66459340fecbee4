/**
 * A conversation as its page shows it: an immutable list of lines, kept current from a session's
 * stored messages and its events.
 *
 * `Conversation` is a store outside React. It applies an event at once and tells its listeners at
 * most once a frame, so that a fast answer costs one render a frame. A line that did not change
 * keeps its identity, so that only changed lines render again.
 */
import type { Schemas, SignalboxEvent } from "@signalbox/client";
import { type Citation, citationsOf, endOf, type Source, sourcesOf } from "./citations.ts";
import { noteOfEnd, noteOfError, noteOfRetry, paused, runnerLost, type Taken, takeoverWords } from "./notes.ts";
import { serverNow } from "./servertime.ts";

export interface File {
	/** Empty if the event of a large message has left it out. */
	url: string;
	mediaType: string;
	name: string;
}

/** What a person said. */
export interface Said {
	kind: "said";
	key: string;
	text: string;
	files: File[];
	by: string | null;
	at: string;
	run: string | null;
	/** The ids of all its versions, its own among them; absent if it is the only one. */
	siblings?: readonly string[];
	/** sending: not confirmed by the server. unsent: kept until the line is back. failed: the server refused it; `error` says why. */
	state: "sending" | "unsent" | "sent" | "failed";
	error?: string;
	/** How much of its files has been sent, from 0 to 1. */
	progress?: number;
}

export type CallState = "arriving" | "queued" | "running" | "asking" | "client" | "done" | "failed" | "refused" | "unavailable" | "unknown";

/**
 * A tool call. Its arguments are absent while they arrive; `received` counts their characters. Then it is
 * queued until the answer that asks for it is complete.
 */
export interface Call {
	id: string;
	tool: string;
	state: CallState;
	received: number;
	args?: unknown;
	result?: unknown;
	/** When it began to run, by the server's clock. */
	startedAt?: number;
	/** How long its tool ran; absent if that is not known. */
	durationMs?: number | undefined;
	/** When its result came, by the server's clock. */
	endedAt?: number;
	ask?: Ask;
	/** When a call that waits for a client becomes an error, and the step that its result has to name. */
	until?: string;
	step?: number;
	/** What the tool last said of its progress. It comes from outside. */
	progress?: { message?: string | undefined; percent?: number | undefined };
}

/** A question to a person about a call. */
export interface Ask {
	reason: string;
	expiresAt?: string | undefined;
	outcomeUnknown: boolean;
	/** Tells this question from another about the same call. */
	askedAt?: string;
	decision?: {
		decision: string;
		by?: string | undefined;
		reason?: string | undefined;
		/** Absent until the run was read: the event does not say it. */
		at?: string | undefined;
	};
}

/** A call that waits for a person, and what is asked about it. */
export interface Question {
	run: string;
	call: Call;
	ask: Ask;
}

/** One step of a run: what the model thought, said and called. */
export interface Step {
	kind: "step";
	key: string;
	run: string;
	index: number;
	reasoning: string;
	text: string;
	calls: Call[];
	sources: Source[];
	/** Where its text relies on a source. */
	citations: Citation[];
	/** void: a retry replaced it. */
	state: "writing" | "done" | "void";
	tokensIn?: number;
	tokensOut?: number;
	model?: string | undefined;
	simulated?: boolean | undefined;
	messageId?: string;
	/** The ids of the first messages of all answers, its own among them; absent if it is the only one. */
	siblings?: readonly string[];
}

/** Why a run did not end by itself, or that something else happened to it. */
export interface Note {
	kind: "note";
	key: string;
	tone: "stop" | "wait" | "note" | "plain";
	title: string;
	text: string;
	code?: string | undefined;
	/** What a person can do about it: choose another account or model, give it more steps, or raise a budget. */
	about?: "accounts" | "steps" | "budget" | undefined;
	/** Said after the text and the time. */
	kept?: string;
	/** When what failed may succeed. */
	back?: string | undefined;
	run: string;
}

export type Line = Said | Step | Note;

/** The active run. */
export interface Active {
	run: string;
	/** paused: between two steps, until another worker goes on. */
	state: "queued" | "running" | "waiting" | "paused";
	/** A stop was asked for. */
	stopping?: boolean;
	step: number;
	startedAt: number;
	tokensIn: number;
	tokensOut: number;
	model: string;
	simulated: boolean;
	reason?: string;
}

export interface View {
	session: Schemas["Session"];
	lines: readonly Line[];
	/** Messages that wait for the active run to end. */
	queue: readonly Said[];
	active: Active | null;
	/** The ids of the other versions of the message that comes next, of which it is a sibling. */
	next: readonly string[];
	/** Where the messages before these begin; null if these are all. */
	earlier: string | null;
	/** How many of the lines have come since from there. */
	prepended: number;
	/** What the runs took that have ended. */
	figures: ReadonlyMap<string, Figures>;
}

/** What a run took. */
export type Figures = Omit<Schemas["RunFigures"], "run_id" | "tool_calls">;

/** A page of earlier messages. */
export type Earlier = Schemas["MessagesOutputBody"];

/**
 * The steps of the answer that ends with the line at an index: those of its run, without what a
 * retry replaced. None if the line is not the end of an answer.
 */
export function answerEndingAt(lines: readonly Line[], index: number): Step[] {
	const last = lines[index];
	if (last?.kind !== "step" || last.state !== "done") return [];
	const belongs = (l: Line | undefined): l is Line => l !== undefined && l.run === last.run && !(l.kind === "said" && !l.run);
	for (let i = index + 1; belongs(lines[i]); i++) if (lines[i]?.kind === "step") return [];
	const steps: Step[] = [];
	for (let i = index; ; i--) {
		const l = lines[i];
		if (!belongs(l)) return steps;
		if (l.kind === "step" && l.state === "done") steps.unshift(l);
	}
}

/** A person's answer is wanted about a call. */
export const asks = (c: Call): c is Call & { ask: Ask } => c.state === "asking" && c.ask !== undefined && !c.ask.decision;

/** The calls of the active run that wait for a person, in order. */
export function questionsOf({ lines, active }: View): Question[] {
	const found: Question[] = [];
	for (let i = lines.length - 1; active && lines[i]?.run === active.run; i--) {
		const l = lines[i];
		if (l?.kind === "step") found.unshift(...l.calls.filter(asks).map((call) => ({ run: l.run, call, ask: call.ask })));
	}
	return found;
}

/** How long what a retry has replaced stays on the page, in ms. */
const voidShown = 1000;

type Details = Schemas["SessionDetails"];
type Part = { type: string } & Record<string, unknown>;

export class Conversation {
	#view: View;
	#listeners = new Set<() => void>();
	#dirty = false;
	readonly #schedule: (f: () => void) => void;
	readonly #later: (f: () => void, ms: number) => void;
	/** How many lines were made, for their keys. */
	#made = 0;
	/** The event after which the stream goes on. */
	lastEvent: string;

	constructor(
		details: Details,
		schedule: (f: () => void) => void = (f) => void requestAnimationFrame(f),
		later: (f: () => void, ms: number) => void = (f, ms) => void setTimeout(f, ms),
	) {
		this.#schedule = schedule;
		this.#later = later;
		this.#view = fromDetails(details);
		this.lastEvent = details.last_event_id;
	}

	subscribe = (listener: () => void): (() => void) => {
		this.#listeners.add(listener);
		return () => this.#listeners.delete(listener);
	};

	view = (): View => this.#view;

	/** Adds a message that is being sent. The event that confirms it replaces it. */
	sending(said: Said): void {
		const v = this.#view;
		this.#set(v.active ? { ...v, queue: [...v.queue, said] } : { ...v, lines: [...v.lines, said] });
	}

	/** Gives a message that was sent its id, or says why it was refused. */
	sent(key: string, outcome: { messageId: string; run: string } | { error: string }): void {
		const settle = (s: Said): Said =>
			"error" in outcome
				? { ...s, state: "failed", error: outcome.error }
				: { ...s, key: outcome.messageId, run: outcome.run, state: "sent" };
		const { lines, queue } = this.#view;
		const known = "messageId" in outcome && [...lines, ...queue].some((l) => l.key === outcome.messageId);
		const each = <T extends Line>(lines: readonly T[]) =>
			known ? lines.filter((l) => l.key !== key) : lines.map((l) => (l.key === key && l.kind === "said" ? (settle(l) as Line as T) : l));
		this.#set({ ...this.#view, lines: each(this.#view.lines), queue: each(this.#view.queue) });
	}

	/** Says that a message waits for the line, is being sent again, or how much of it has been sent. */
	delivers(key: string, change: Pick<Said, "state"> | Pick<Said, "progress">): void {
		const each = <T extends Line>(lines: readonly T[]) => lines.map((l) => (l.key === key ? { ...l, ...change } : l));
		this.#set({ ...this.#view, lines: each(this.#view.lines), queue: each(this.#view.queue) });
	}

	/** Forgets a message that was refused or taken back. */
	forget(key: string): void {
		this.#set({
			...this.#view,
			lines: this.#view.lines.filter((l) => l.key !== key),
			queue: this.#view.queue.filter((l) => l.key !== key),
		});
	}

	/** Moves a message that waits to the end of the queue, or to the active run, and notes the run that answers it now. */
	moved(said: Said, run: string): void {
		const v = this.#view;
		// The event that its old run has ended may have come before.
		if (v.lines.some((l) => l.key === said.key)) return;
		this.#set({ ...v, queue: [...v.queue.filter((q) => q.key !== said.key), { ...said, run }] });
	}

	/**
	 * Shows the messages that wait as the server had them, in its order, when `before` was the queue here. A
	 * message has no event before it joins the conversation, or its run ends because the message is taken back.
	 */
	waits(details: Details, before: readonly Said[]): void {
		const v = this.#view;
		const { queue: stored, active } = fromDetails(details);
		const runs = stored.map((q) => q.run);
		const has = (said: readonly Line[], key: string) => said.some((l) => l.key === key);
		const news = stored.filter(
			(q) =>
				![before, v.queue, v.lines].some((said) => has(said, q.key)) &&
				!v.queue.some((own) => own.state === "sending" && own.text === q.text), // its confirmation is under way
		);
		const waits = (q: Said) => q.state !== "sent" || !has(before, q.key) || has(stored, q.key);
		const begins = (q: Said) => q.run === v.active?.run || q.run === active?.run; // an event says when it joins
		const place = (q: Said) => (runs.includes(q.run) ? runs.indexOf(q.run) : begins(q) ? -1 : runs.length);
		const queue = [...v.queue.filter((q) => waits(q) || begins(q)), ...news].sort((a, b) => place(a) - place(b));
		if (queue.length !== v.queue.length || queue.some((q, i) => q !== v.queue[i])) this.#set({ ...v, queue });
	}

	/** The active run, if it has calls without a result; stored messages do not say whom they wait for. */
	get calling(): string | undefined {
		const { active, lines } = this.#view;
		const calls = lines.some((l) => l.kind === "step" && l.run === active?.run && l.calls.some((c) => c.state === "running"));
		return calls ? active?.run : undefined;
	}

	/** Adds who has answered for the calls of a run and, while it is active, whom they wait for and since when they run. */
	mergeCalls(run: string, calls: readonly Schemas["ToolCall"][]): void {
		const { active } = this.#view;
		for (const { tool_call_id: id, args, approval, result_expires_at: until, step_index: step, planned_at: planned } of calls) {
			if (approval?.decided_at && approval.decision !== "rule" && !until) this.#decided(run, step, id, approval);
			if (active?.run !== run) continue; // it has ended since it was read
			// Events may have come since the run was read: a call that was answered or has ended stays so.
			const open = (c: Call) => c.state === "asking" || (c.state === "running" && !c.ask?.decision);
			const decided = approval?.decided_at ?? undefined;
			const began = decided ?? planned;
			if (began) this.#call(id, (c) => (c.state === "running" && (decided || open(c)) ? { ...c, startedAt: Date.parse(began) } : c));
			if (until) this.#call(id, (c) => (c.state === "running" || c.state === "asking" ? { ...c, state: "client", args, until, step } : c));
			else if (approval && !approval.decision)
				this.#call(id, (c) =>
					open(c)
						? {
								...c,
								state: "asking",
								args: approval.args,
								ask: {
									reason: approval.reason,
									expiresAt: approval.expires_at ?? undefined,
									outcomeUnknown: approval.question === "outcome",
									askedAt: approval.asked_at,
								},
							}
						: c,
				);
		}
		this.#set({ ...this.#view, active });
	}

	/** Adds to a call who answered the question about it, and when. */
	#decided(run: string, step: number, id: string, a: Schemas["Approval"]): void {
		const ask: Ask = { reason: a.reason, outcomeUnknown: a.question === "outcome", askedAt: a.asked_at, decision: decisionOf(a) };
		const change = (c: Call): Call => (c.id === id && c.state !== "asking" ? decided(c, ask) : c);
		const lines = this.#view.lines.map((l) =>
			l.kind === "step" && l.run === run && l.index === step && l.calls.some((c) => c.id === id) ? { ...l, calls: l.calls.map(change) } : l,
		);
		this.#set({ ...this.#view, lines });
	}

	/** Says on screen that a stop of a run was asked for, or that it was not. */
	stopping(run: string, stopping: boolean): void {
		const { active } = this.#view;
		if (active?.run === run) this.#set({ ...this.#view, active: { ...active, stopping } });
	}

	/** Adds the messages before those that are there. */
	prepend(page: Earlier): void {
		const v = this.#view;
		const lines = linesOf(page, () => false).lines;
		this.#set({
			...v,
			lines: [...lines, ...v.lines],
			earlier: page.next_cursor,
			prepended: v.prepended + lines.length,
			figures: new Map([...figuresOf(page.runs), ...v.figures]),
		});
	}

	/** Adds what a run took that has ended since. */
	setFigures(run: string, figures: Figures): void {
		this.#set({ ...this.#view, figures: new Map(this.#view.figures).set(run, figures) });
	}

	/** Says who took a run over and how long that took, of all its takeovers. The last of them may be shown. */
	setTakeovers(run: string, all: readonly Taken[]): void {
		const left = [...all];
		const lines = this.#view.lines.toReversed().map((l) => {
			const taken = l.kind === "note" && l.run === run && l.code === runnerLost ? left.pop() : undefined;
			return taken ? { ...(l as Note), text: takeoverWords(taken) } : l;
		});
		this.#set({ ...this.#view, lines: lines.reverse() });
	}

	/** Replaces the session, such as after a rename. */
	renamed(session: Schemas["Session"]): void {
		this.#set({ ...this.#view, session });
	}

	/** Applies an event that came at `now`, by the server's clock. */
	apply(id: string, e: SignalboxEvent, now = serverNow()): void {
		if (id) this.lastEvent = id;
		switch (e.type) {
			case "snapshot":
				this.#again(fromDetails(e as Details));
				return;
			case "user-message":
				this.#heard(e);
				return;
			case "run-start":
				this.#set({ ...this.#view, active: this.#activeOf(e.runId, now, { state: "running", model: e.model, simulated: e.simulated }) });
				return;
			case "text-delta":
				this.#step((s) => ({ ...s, text: s.text + e.delta }), now);
				return;
			case "reasoning-delta":
				this.#step((s) => ({ ...s, reasoning: s.reasoning + e.delta }), now);
				return;
			case "source":
				this.#step(
					(s) => (s.sources.some((x) => x.url === e.url) ? s : { ...s, sources: [...s.sources, { url: e.url, title: e.title }] }),
					now,
				);
				return;
			case "citation":
				this.#step((s) => {
					const at = e.end ? endOf(s.text, e.end) : s.text.length;
					return { ...s, citations: [...s.citations, { at, url: e.url, text: e.text }] };
				}, now);
				return;
			case "tool-call-start":
				this.#step((s) => {
					const before = s.calls.map((c) => (c.state === "arriving" ? { ...c, state: "queued" as const } : c));
					return { ...s, calls: [...before, { id: e.toolCallId, tool: e.toolName, state: "arriving", received: 0 }] };
				}, now);
				return;
			case "tool-call-delta":
				this.#call(e.toolCallId, (c) => ({ ...c, received: c.received + e.delta.length }));
				return;
			case "tool-call-complete": {
				const runs = { state: "running" as const, args: e.args, startedAt: e.at ? Date.parse(e.at) : now };
				if (!this.#call(e.toolCallId, (c) => ({ ...c, ...runs })))
					this.#step((s) => ({ ...s, calls: [...s.calls, { id: e.toolCallId, tool: e.toolName, received: 0, ...runs }] }), now);
				return;
			}
			case "tool-approval-request":
				this.#call(e.toolCallId, (c) => ({
					...c,
					state: "asking",
					args: e.args,
					ask: { reason: e.reason ?? "", expiresAt: e.expiresAt, outcomeUnknown: e.outcomeUnknown ?? false },
				}));
				return;
			case "tool-client-request":
				this.#call(e.toolCallId, (c) => ({ ...c, state: "client", args: e.args, until: e.expiresAt, step: e.stepIndex }));
				return;
			case "tool-approval-response":
				this.#call(e.toolCallId, (c) => {
					const runs = e.decision === "approved" || e.decision === "repeat";
					const ask = c.ask ?? { reason: "", outcomeUnknown: e.decision === "repeat" || e.decision === "happened" };
					return {
						...c,
						state: runs ? "running" : e.decision === "happened" ? "done" : "refused",
						...(runs ? { startedAt: now } : {}),
						ask: { ...ask, decision: { decision: e.decision, by: e.decidedBy, reason: e.reason } },
					};
				});
				return;
			case "tool-progress":
				this.#call(e.toolCallId, (c) => ({ ...c, progress: { message: e.message, percent: e.percent } }));
				return;
			case "tool-result":
				this.#call(e.toolCallId, (c) => ({ ...ended(c, parse(e.result), e.isError, now), durationMs: e.durationMs }));
				return;
			case "step-complete":
				this.#stepDone(e);
				return;
			case "step-retry":
				this.#retried(e.reason);
				return;
			case "compaction":
				this.#compacted(e.messages);
				return;
			case "session-title":
				this.renamed({ ...this.#view.session, title: e.title });
				return;
			case "waiting": {
				const { active } = this.#view;
				const waits = e.forRunner ? { state: "paused" as const, reason: paused } : { state: "waiting" as const, reason: e.reason };
				if (active) this.#set({ ...this.#view, active: { ...active, ...waits } });
				return;
			}
			case "done":
				if (e.messageId) this.#named(e.runId, e.messageId);
				this.#ended(e.runId, noteOfEnd(e.runId, e.finishReason, e.finishDetail, e.steps));
				return;
			case "error":
				this.#ended(e.runId, noteOfError(e.runId, e.error, e.code, e.retryAt));
				return;
		}
	}

	/** Begins anew, and keeps what only this page knows: messages that the server has not confirmed, and that a run is paused. */
	#again(v: View): void {
		const { active } = this.#view;
		const same =
			active?.state === "paused" && v.active?.run === active.run && v.active.state === "running" && v.active.step === active.step;
		const own = (l: Line): l is Said => l.kind === "said" && l.state !== "sent";
		this.#set({
			...v,
			active: same ? active : v.active,
			lines: [...v.lines, ...this.#view.lines.filter(own)],
			queue: [...v.queue, ...this.#view.queue.filter(own)],
		});
	}

	#heard(e: Schemas["UserMessageEvent"]): void {
		const v = this.#view;
		const { text, files } = contentOf(e.content);
		const said: Said = {
			kind: "said",
			key: e.messageId,
			text,
			files,
			by: e.createdBy,
			at: new Date().toISOString(),
			run: e.runId,
			state: "sent",
		};
		const confirms = (l: Line) =>
			l.key === e.messageId ||
			(l.kind === "said" && (l.state === "sending" || l.state === "unsent") && l.text === text && (l.by ?? e.createdBy) === e.createdBy);
		const pending = v.queue.findIndex(confirms);
		const queue = pending < 0 ? v.queue : v.queue.toSpliced(pending, 1);
		const at = v.lines.findIndex(confirms);
		if (at >= 0 && v.lines[at]?.key === e.messageId) {
			// It is answered again, and keeps its versions: those that come are of its answers.
			this.#set({ ...v, queue });
			return;
		}
		const own = v.lines[at] ?? v.queue[pending];
		if (own?.kind === "said" && files.some((f) => f.url === "")) said.files = own.files;
		const lines = at < 0 ? [...v.lines, { ...said, ...this.#versions(e.messageId) }] : v.lines.with(at, said);
		this.#set({ ...v, lines, queue, next: [] });
	}

	/** The siblings of the message that comes now. */
	#versions(id: string): { siblings?: string[] } {
		const { next } = this.#view;
		return next.length > 0 ? { siblings: [...next, id] } : {};
	}

	/** Gives the step that is being written the id under which it is stored. */
	#named(run: string, messageId: string): void {
		const v = this.#view;
		const i = v.lines.findLastIndex((l) => l.kind === "step" && l.state === "writing" && l.run === run);
		const l = v.lines[i];
		if (l?.kind === "step") this.#set({ ...v, lines: v.lines.with(i, { ...l, messageId, ...this.#versions(messageId) }), next: [] });
	}

	#activeOf(run: string, now: number, change: Partial<Active>): Active {
		const a = this.#view.active;
		const same: Active =
			a?.run === run ? a : { run, state: "running", step: 0, startedAt: now, tokensIn: 0, tokensOut: 0, model: "", simulated: false };
		return { ...same, ...change };
	}

	/** Changes the step that is being written, which it begins if there is none. */
	#step(change: (s: Step) => Step, now: number): void {
		const v = this.#view;
		const last = v.lines.at(-1);
		if (last?.kind === "step" && last.state === "writing") {
			this.#set({ ...v, lines: v.lines.with(-1, change(last)) });
			return;
		}
		const active = this.#activeOf(v.active?.run ?? "", now, { state: "running" });
		const step: Step = {
			kind: "step",
			key: `${active.run}/${active.step}/${this.#made++}`,
			run: active.run,
			index: active.step,
			reasoning: "",
			text: "",
			calls: [],
			sources: [],
			citations: [],
			state: "writing",
			model: active.model,
			simulated: active.simulated,
		};
		this.#set({ ...v, active, lines: [...v.lines, change(step)] });
	}

	/** Changes a call; false if there is none with this id. */
	#call(id: string, change: (c: Call) => Call): boolean {
		const v = this.#view;
		for (let i = v.lines.length - 1; i >= 0; i--) {
			const l = v.lines[i];
			if (l?.kind !== "step") continue;
			const at = l.calls.findIndex((c) => c.id === id);
			const call = l.calls[at];
			if (!call) continue;
			const step = { ...l, calls: l.calls.with(at, change(call)) };
			const active = v.active?.state === "waiting" ? { ...v.active, state: "running" as const } : v.active;
			this.#set({ ...v, active, lines: v.lines.with(i, step) });
			return true;
		}
		return false;
	}

	#stepDone(e: Schemas["StepCompleteEvent"]): void {
		if (e.messageId) this.#named(this.#view.active?.run ?? "", e.messageId);
		const v = this.#view;
		const i = v.lines.findLastIndex((l) => l.kind === "step" && l.state === "writing");
		const active = v.active && {
			...v.active,
			step: e.stepIndex + 1,
			tokensIn: v.active.tokensIn + e.tokensIn,
			tokensOut: v.active.tokensOut + e.tokensOut,
		};
		const l = v.lines[i];
		const lines =
			l?.kind === "step"
				? v.lines.with(i, { ...l, state: "done", index: e.stepIndex, tokensIn: e.tokensIn, tokensOut: e.tokensOut })
				: v.lines;
		this.#set({ ...v, active, lines });
	}

	/** What the step has said so far is void, and is struck off a moment later. */
	#retried(reason: string): void {
		const v = this.#view;
		const run = v.active?.run ?? "";
		const lines = v.lines.map((l) => (l.kind === "step" && l.state === "writing" ? { ...l, state: "void" as const } : l));
		this.#set({
			...v,
			lines: [...lines, noteOfRetry(run, this.#made++, reason)],
		});
		const gone = new Set(lines.flatMap((l) => (l.kind === "step" && l.state === "void" ? [l.key] : [])));
		if (gone.size > 0) this.#later(() => this.#set({ ...this.#view, lines: this.#view.lines.filter((l) => !gone.has(l.key)) }), voidShown);
	}

	/** A summary of the first messages is made in a step that has no text. */
	#compacted(messages: number): void {
		const v = this.#view;
		const run = v.active?.run ?? "";
		const text = `The model has summarized the first ${messages} messages, to go on within its limits. They stay here.`;
		this.#set({
			...v,
			active: v.active && { ...v.active, state: "running" },
			lines: [...v.lines, { kind: "note", key: `${run}/compaction/${this.#made++}`, tone: "plain", title: "", text, run }],
		});
	}

	#ended(run: string, note: Note | null): void {
		const { active } = this.#view;
		const waited = this.#view.queue.some((q) => q.run === run);
		if (active && active.run !== run && (active.run || waited)) {
			// The message was taken back before its run began. If that was here, it has left the queue already.
			this.#set({ ...this.#view, queue: this.#view.queue.filter((q) => q.run !== run) });
			return;
		}
		const joins = this.#view.queue.filter((q) => q.run === run);
		const v = { ...this.#view, queue: this.#view.queue.filter((q) => q.run !== run) };
		const lines = [...v.lines, ...joins].map((l) =>
			l.kind === "step" && l.run === run && l.state === "writing"
				? {
						...l,
						state: "done" as const,
						calls: l.calls.map((c) =>
							c.state === "running" || c.state === "queued" || c.state === "arriving" || c.state === "asking" || c.state === "client"
								? { ...c, state: "unknown" as const }
								: c,
						),
					}
				: l,
		);
		this.#set({ ...v, lines: note ? [...lines, note] : lines, active: v.active?.run === run || !v.active?.run ? null : v.active });
	}

	#set(v: View): void {
		this.#view = v;
		if (this.#dirty) return;
		this.#dirty = true;
		this.#schedule(() => {
			this.#dirty = false;
			for (const f of this.#listeners) f();
		});
	}
}

/** Makes the view of a stored session. */
function fromDetails(d: Details): View {
	const messages = d.messages as Schemas["Message"][];
	const active = d.active_run as Schemas["Run"] | null;
	const from = active ? messages.findIndex((m) => m.id === active.user_message_id) : messages.length;
	// A message has joined the conversation once it follows another, also if its run was stopped before it began.
	const { lines, queue } = linesOf(d, (m, i) => active !== null && i > from && m.parent_id === null);
	return {
		session: d.session,
		lines,
		queue,
		next: d.next_siblings ?? [],
		earlier: d.messages_cursor ?? null,
		prepended: 0,
		figures: figuresOf(d.runs),
		active: active && {
			run: active.id,
			state: active.state === "waiting" || active.state === "queued" ? active.state : "running",
			step: active.steps,
			startedAt: Date.parse(active.started_at ?? active.created_at),
			tokensIn: active.usage.input_tokens,
			tokensOut: active.usage.output_tokens,
			model: active.model,
			simulated: active.simulated,
		},
	};
}

const figuresOf = (runs: readonly Schemas["RunFigures"][] = []) =>
	new Map(runs.filter((r) => r.ended_at).map(({ run_id, tool_calls, ...figures }): [string, Figures] => [run_id, figures]));

/** The lines of stored messages, and those of them that wait. */
function linesOf(
	stored: Pick<Details, "messages" | "stopped_runs" | "runs">,
	waits: (m: Schemas["Message"], index: number) => boolean,
): { lines: Line[]; queue: Said[] } {
	const messages = stored.messages as Schemas["Message"][];
	const lines: Line[] = [];
	const queue: Said[] = [];
	// A run that was stopped says why, before the next message.
	const stopped = new Map(stored.stopped_runs?.map((r) => [r.run_id, r]));
	const end = (run: string | null | undefined) => {
		const r = run ? stopped.get(run) : undefined;
		if (!r) return;
		stopped.delete(r.run_id);
		const note = r.error
			? noteOfError(r.run_id, r.error.message, r.error.code, r.error.retry_at)
			: noteOfEnd(r.run_id, r.finish_reason, r.finish_detail, r.steps);
		if (note) lines.push(note);
	};
	messages.forEach((m, i) => {
		if (m.run_id !== messages[i - 1]?.run_id) end(messages[i - 1]?.run_id);
		if (m.role === "user") {
			const { text, files } = contentOf(m.content);
			const said: Said = { kind: "said", key: m.id, text, files, by: m.created_by, at: m.created_at, run: m.run_id, state: "sent" };
			if (m.siblings) said.siblings = m.siblings;
			(waits(m, i) ? queue : lines).push(said);
		} else if (m.role === "assistant") lines.push(stepOf(m));
		else if (m.role === "tool") for (const p of partsOf(m.content)) settle(lines, p, m.created_at);
	});
	end(messages.at(-1)?.run_id);
	addFigures(lines, stored.runs);
	return { lines, queue };
}

function stepOf(m: Schemas["Message"]): Step {
	const s: Step = {
		kind: "step",
		key: m.id,
		messageId: m.id,
		run: m.run_id ?? "",
		index: m.step_index ?? 0,
		reasoning: "",
		text: "",
		calls: [],
		sources: [],
		citations: [],
		state: "done",
		model: m.model ?? undefined,
		simulated: m.simulated,
	};
	if (m.siblings) s.siblings = m.siblings;
	if (m.tokens_in !== null) s.tokensIn = m.tokens_in;
	if (m.tokens_out !== null) s.tokensOut = m.tokens_out;
	for (const p of partsOf(m.content)) {
		if (p.type === "text") {
			s.citations.push(...citationsOf(p, s.text.length));
			s.text += p.text;
		} else if (p.type === "reasoning") s.reasoning += p.text;
		else if (p.type === "tool-call")
			s.calls.push({ id: String(p.toolCallId), tool: String(p.toolName), state: "running", received: 0, args: p.input });
		else if (p.type === "tool-result") settle([s], p, m.created_at);
		for (const f of sourcesOf(p)) if (!s.sources.some((x) => x.url === f.url)) s.sources.push(f);
	}
	return s;
}

/** Adds to calls how long they took, and who answered the question about them. */
function addFigures(lines: readonly Line[], runs: readonly Schemas["RunFigures"][] = []): void {
	const place = (run: string, step: number, call: string) => `${run}/${step}/${call}`;
	const figures = new Map(runs.flatMap((r) => (r.tool_calls ?? []).map((c) => [place(r.run_id, c.step_index, c.tool_call_id), c])));
	for (const l of lines)
		if (l.kind === "step")
			l.calls = l.calls.map((c) => {
				const f = figures.get(place(l.run, l.index, c.id));
				if (!f) return c;
				const timed = f.duration_ms > 0 ? { ...c, durationMs: f.duration_ms } : c;
				return f.decision ? decided(timed, { reason: "", outcomeUnknown: false, decision: decisionOf(f) }) : timed;
			});
}

/** A call with the answered question about it. */
const decided = (c: Call, ask: Ask): Call => ({
	...c,
	ask,
	...(ask.decision?.decision === "refused" || ask.decision?.decision === "expired" ? { state: "refused" } : {}),
});

const decisionOf = (a: Pick<Schemas["Approval"], "decision" | "decided_by" | "decision_reason" | "decided_at">) => ({
	decision: a.decision ?? "",
	by: a.decided_by ?? undefined,
	reason: a.decision_reason ?? undefined,
	at: a.decided_at ?? "",
});

/** Gives a stored result to its call, which stands in one of the last lines. */
function settle(lines: Line[], p: Part, at: string): void {
	if (p.type !== "tool-result") return;
	const output = p.output as { type?: string; value?: unknown } | undefined;
	for (let i = lines.length - 1; i >= 0; i--) {
		const l = lines[i];
		if (l?.kind !== "step") continue;
		const place = l.calls.findIndex((c) => c.id === p.toolCallId);
		const call = l.calls[place];
		if (!call) continue;
		l.calls[place] = ended(call, output?.value, output?.type?.startsWith("error") ?? false, Date.parse(at));
		return;
	}
}

function ended(c: Call, result: unknown, isError: boolean, endedAt: number): Call {
	const decision = c.ask?.decision?.decision;
	const refused = decision === "refused" || decision === "expired";
	const failed = unavailable.has(causeOf(result).code ?? "") ? "unavailable" : "failed";
	return { ...c, state: refused ? "refused" : isError ? failed : "done", result, endedAt };
}

/** The codes of calls whose tool could not be used. */
const unavailable: ReadonlySet<string> = new Set([
	"UNAVAILABLE",
	"NOT_CONNECTED",
	"CONNECTION_DISABLED",
	"SERVER_UNAVAILABLE",
	"DEFINITION_CHANGED",
]);

/** What an error result tells programs; docs/api.md has the codes. */
export function causeOf(result: unknown): { code?: string; service?: string; server?: string; reason?: string } {
	if (typeof result !== "object" || result === null) return {};
	return Object.fromEntries(Object.entries(result).filter(([, v]) => typeof v === "string"));
}

/** The error that a result is; empty if it is none. */
export function errorOf(result: unknown): string {
	if (typeof result !== "object" || result === null || !("error" in result)) return "";
	return typeof result.error === "string" ? result.error : JSON.stringify(result.error);
}

function partsOf(content: unknown): Part[] {
	if (typeof content === "string") return [{ type: "text", text: content }];
	return Array.isArray(content) ? (content as Part[]) : [];
}

function contentOf(content: unknown): { text: string; files: File[] } {
	let text = "";
	const files: File[] = [];
	for (const p of partsOf(content)) {
		if (p.type === "text") text += (text ? "\n\n" : "") + String(p.text);
		else if (p.type === "file" || p.type === "image") {
			const data = String(p.data ?? p.image ?? p.url ?? "");
			const mediaType = String(p.mediaType ?? "image/png");
			files.push({
				url: data === "" || /^(data|https?):/.test(data) ? data : `data:${mediaType};base64,${data}`,
				mediaType,
				name: String(p.filename ?? "file"),
			});
		}
	}
	return { text, files };
}

function parse(json: string): unknown {
	try {
		return JSON.parse(json);
	} catch {
		return json;
	}
}

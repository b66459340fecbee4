import { useEffect, useLayoutEffect, useState, useSyncExternalStore } from "react";
import { createPortal } from "react-dom";
import { mac, useActions } from "../actions.ts";
import { useWorkspace } from "../client.ts";
import {
	type Answer,
	decide,
	forgetFailure,
	giveAnswer,
	isAnswered,
	questionId,
	sendAnswer,
	takeBackAnswer,
	useAnswers,
} from "../live/answers.ts";
import type { Ask as AskData, Call, Question } from "../live/conversation.ts";
import { useTools } from "../tools.ts";
import { sentence, toolWords, until } from "../words.ts";
import css from "./Ask.module.css";
import { Button } from "./controls.tsx";
import { effectWords } from "./effect.ts";
import { Signal } from "./Signal.tsx";

type Remember = NonNullable<Answer["remember"]>;
const remembered: Record<Remember, string> = {
	arguments: "with these arguments",
	session: "in this session",
	workspace: "in the workspace", // for owners
};

const narrow = matchMedia("(max-width: 760px)");
const onNarrow = (f: () => void) => {
	narrow.addEventListener("change", f);
	return () => narrow.removeEventListener("change", f);
};

/**
 * The question whether a call may run, or whether one whose outcome is unknown has happened. Its
 * answer goes to the server after 5 s, in which it can be taken back, or when the card leaves the
 * page; the event that confirms it says who answered in the place of the card. With `keys`, A and R
 * answer.
 */
export function Ask({
	call,
	ask,
	session,
	run,
	keys = false,
	place = "",
	where,
	onAnswered,
}: {
	call: Call;
	ask: AskData;
	session: string;
	run: string;
	keys?: boolean;
	/** Its place among the questions of a step, such as "1 of 3"; empty for the only one. */
	place?: string;
	/** The session's title, where questions of several sessions are shown. */
	where?: string;
	onAnswered?: () => void;
}) {
	const { client, workspace } = useWorkspace();
	const watching = workspace.role === "viewer";
	const question: Question = { run, call, ask };
	const id = questionId(question);
	const given = useAnswers().get(id);
	const [refusing, setRefusing] = useState(false);
	const [reason, setReason] = useState("");
	const [remember, setRemember] = useState<Remember | "">("");
	const give = (a: Answer) =>
		giveAnswer(id, { ...a, ...(remember && a.approved !== undefined ? { remember } : {}) }, (sent) =>
			decide(client, session, question, sent).then(onAnswered),
		);
	// A refusal may have been given in the composer, or when the card left the page.
	const refusalFailed = given?.state === "failed" && given.answer.approved === false;
	useEffect(() => {
		if (!refusalFailed) return;
		setReason(given.answer.reason ?? "");
		setRefusing(true);
	}, [given, refusalFailed]);
	useEffect(
		() => () => {
			sendAnswer(id);
			forgetFailure(id);
		},
		[id],
	);
	const undo = () => {
		takeBackAnswer(id);
		if (given?.answer.approved !== false) return;
		setReason(given.answer.reason ?? "");
		setRefusing(true);
	};
	const waits = given?.state === "waits";
	const answered = isAnswered(given);
	const open = !watching && !answered && !ask.outcomeUnknown;
	useActions(
		waits
			? [{ name: "Take the answer back", keys: "mod+z", run: undo }]
			: keys && open
				? [
						{ name: `Approve: ${toolWords(call.tool)}`, keys: "a", run: () => give({ approved: true }) },
						{ name: `Refuse: ${toolWords(call.tool)}`, keys: "r", run: () => setRefusing(true) },
					]
				: [],
	);
	const name = toolWords(call.tool);
	// On a phone the answers are where the composer is else, under the thumb.
	const isNarrow = useSyncExternalStore(onNarrow, () => narrow.matches);
	const belongsThere = keys && isNarrow && !watching;
	const [slot, setSlot] = useState<HTMLElement | null>(null);
	// Looked up after the change of pages: during the render, #answers may still be the old page's, which is removed.
	useLayoutEffect(() => setSlot(belongsThere ? document.getElementById("answers") : null), [belongsThere]);
	const footer = watching ? (
		<p className={`${css.footer} text-small text-ink-2`}>An editor or an owner answers.</p>
	) : given && answered ? (
		<div className={css.footer} role="status">
			<Signal name={waits ? "queued" : given.state === "sending" ? "running" : "done"} label="" />
			<span className="flex-1">{answerWords(given.answer, waits)}</span>
			{waits && (
				<Button look="quiet" small shortcut={mac ? "⌘ Z" : "Ctrl Z"} onClick={undo}>
					Undo
				</Button>
			)}
		</div>
	) : refusing ? (
		<form
			className={css.footer}
			onSubmit={(e) => {
				e.preventDefault();
				give({ approved: false, reason });
			}}
		>
			<label className="sr" htmlFor={`why-${call.id}`}>
				Why not
			</label>
			<input
				id={`why-${call.id}`}
				className={css.why}
				value={reason}
				onChange={(e) => setReason(e.target.value)}
				placeholder="Say why, so that the agent can do better"
				autoFocus={!refusalFailed} // the person may be writing elsewhere
				maxLength={1000}
			/>
			<Button type="submit">Refuse</Button>
			<Button
				look="quiet"
				onClick={() => {
					forgetFailure(id);
					setRefusing(false);
				}}
			>
				Back
			</Button>
		</form>
	) : ask.outcomeUnknown ? (
		<div className={css.footer}>
			<Button onClick={() => give({ outcome: "happened" })}>It happened</Button>
			<Button onClick={() => give({ outcome: "repeat" })}>It did not, do it</Button>
		</div>
	) : (
		<div className={css.footer}>
			<Button look="primary" {...(keys ? { shortcut: "A" } : {})} onClick={() => give({ approved: true })}>
				Approve
			</Button>
			<Button {...(keys ? { shortcut: "R" } : {})} onClick={() => setRefusing(true)}>
				Refuse and say why
			</Button>
			<span className="flex-1" />
			<label className="text-small text-ink-2">
				Don’t ask again{" "}
				<select value={remember} onChange={(e) => setRemember(e.target.value as Remember | "")}>
					<option value="">(ask each time)</option>
					{Object.entries(remembered).map(
						([value, text]) =>
							(value !== "workspace" || workspace.role === "owner") && (
								<option key={value} value={value}>
									{text}
								</option>
							),
					)}
				</select>
			</label>
		</div>
	);
	return (
		<section className={css.ask} aria-label={`Approval wanted: ${name}${where ? `, in ${where}` : ""}`}>
			<header>
				<Signal name={ask.outcomeUnknown ? "unknown" : "waiting"} label="" />
				<span className="flex-1">{ask.outcomeUnknown ? `The worker died while “${name}” ran` : `${name}?`}</span>
				{ask.expiresAt && <span className="n text-small">counts as refused in {until(ask.expiresAt)}</span>}
			</header>
			<dl>
				<Fields of={call.args} />
				{ask.reason && (
					<div>
						<dt>Why you are asked</dt>
						<dd>{ask.outcomeUnknown ? "It may have happened. Look, then tell the agent." : sentence(ask.reason)}</dd>
					</div>
				)}
				{!ask.outcomeUnknown && <Effect tool={call.tool} />}
			</dl>
			<Exactly args={call.args} summary="Exactly what will be sent" />
			{given?.state === "failed" && (
				<p className={css.error} role="alert">
					{given.error}
				</p>
			)}
			{slot
				? createPortal(
						<div className={css.thumb} data-answered={answered || undefined}>
							<p className="micro">
								{name}? {place}
							</p>
							{footer}
						</div>,
						slot,
					)
				: footer}
		</section>
	);
}

/** What the tool's declaration says of a call. */
function Effect({ tool }: { tool: string }) {
	const found = useTools().data?.find((t) => t.name === tool);
	if (!found) return null;
	const { changes, afterCrash } = effectWords(found);
	return (
		<>
			{changes && (
				<div>
					<dt>Effect</dt>
					<dd>{changes}</dd>
				</div>
			)}
			<div>
				<dt>If the worker dies</dt>
				<dd>{afterCrash}</dd>
			</div>
		</>
	);
}

/** Arguments in words. */
export function Fields({ of }: { of: unknown }) {
	return Object.entries(fields(of)).map(([key, value]) => (
		<div key={key}>
			<dt>{key.replaceAll("_", " ")}</dt>
			<dd>{value}</dd>
		</div>
	));
}

/** Arguments as JSON, behind a disclosure. */
export function Exactly({ args, summary }: { args: unknown; summary: string }) {
	return (
		<details>
			<summary>{summary}</summary>
			<pre tabIndex={0} role="region" aria-label="Arguments as JSON">
				{JSON.stringify(args, null, 2)}
			</pre>
		</details>
	);
}

function answerWords(a: Answer, waits: boolean): string {
	const what =
		a.outcome === "happened" ? "It happened" : a.outcome === "repeat" ? "It did not, it is done now" : a.approved ? "Approved" : "Refused";
	return waits ? `${what}. Sent in 5 s.` : `${what}.`;
}

/** The arguments in words: what is short as it is, what is long by its beginning. */
function fields(args: unknown): Record<string, string> {
	if (typeof args !== "object" || args === null) return {};
	const out: Record<string, string> = {};
	for (const [key, v] of Object.entries(args)) {
		const text =
			typeof v === "string"
				? v
				: Array.isArray(v)
					? v.map((x) => (typeof x === "string" ? x : JSON.stringify(x))).join(", ")
					: JSON.stringify(v);
		if (text) out[key] = text.length > 240 ? `${text.slice(0, 240)}… (${text.length} characters)` : text;
	}
	return out;
}

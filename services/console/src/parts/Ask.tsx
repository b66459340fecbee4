import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { createPortal } from "react-dom";
import { mac, useActions } from "../actions.ts";
import { unwrap, useWorkspace } from "../client.ts";
import type { Call, Ask as Question } from "../live/conversation.ts";
import { toolWords, until } from "../words.ts";
import css from "./Ask.module.css";
import { Button } from "./controls.tsx";
import { Signal } from "./Signal.tsx";

type Remember = "arguments" | "session" | "workspace";
const remembered: Record<Remember, string> = {
	arguments: "with these arguments",
	session: "in this session",
	workspace: "in the workspace", // for owners
};

type Answer = { approved?: boolean; outcome?: "happened" | "repeat"; reason?: string };

const narrow = matchMedia("(max-width: 760px)");
const onNarrow = (f: () => void) => {
	narrow.addEventListener("change", f);
	return () => narrow.removeEventListener("change", f);
};

/** How long an answer can be taken back. */
const grace = 5000;

/**
 * The question whether a call may run, or whether one whose outcome is unknown has happened. Its
 * answer goes to the server after 5 s, in which it can be taken back, or when the card leaves the
 * page; the event that confirms it replaces the card. With `keys`, A and R answer.
 */
export function Ask({
	call,
	ask,
	session,
	run,
	keys = false,
	place = "",
	onAnswered,
}: {
	call: Call;
	ask: Question;
	session: string;
	run: string;
	keys?: boolean;
	/** Its place among the questions of a step, such as "1 of 3"; empty for the only one. */
	place?: string;
	onAnswered?: () => void;
}) {
	const { client, workspace } = useWorkspace();
	const watching = workspace.role === "viewer";
	const [refusing, setRefusing] = useState(false);
	const [reason, setReason] = useState("");
	const [remember, setRemember] = useState<Remember | "">("");
	const answer = useMutation({
		mutationFn: (body: Answer) =>
			unwrap(
				client.api.POST("/api/sessions/{id}/approvals/{tool_call_id}", {
					params: { path: { id: session, tool_call_id: call.id } },
					body: {
						...body,
						...(run ? { run_id: run } : {}),
						...(ask.askedAt ? { asked_at: ask.askedAt } : {}),
						...(remember && body.approved !== undefined ? { remember } : {}),
					},
				}),
			),
		onSuccess: () => onAnswered?.(),
	});
	const [given, setGiven] = useState<Answer>();
	const send = useRef(answer.mutate);
	useEffect(() => {
		send.current = answer.mutate;
	});
	const back = useRef(false);
	useEffect(() => {
		if (!given) return;
		back.current = false;
		let sent = false;
		const now = () => {
			if (!sent && !back.current) send.current(given);
			sent = true;
		};
		const t = setTimeout(() => {
			now();
			setGiven(undefined);
		}, grace);
		return () => {
			clearTimeout(t);
			now();
		};
	}, [given]);
	const undo = () => {
		back.current = true;
		setGiven(undefined);
	};
	const open = !watching && !given && !answer.isPending && !answer.isSuccess && !ask.outcomeUnknown;
	useActions(
		given
			? [{ name: "Take the answer back", keys: "mod+z", run: undo }]
			: keys && open
				? [
						{ name: `Approve: ${toolWords(call.tool)}`, keys: "a", run: () => setGiven({ approved: true }) },
						{ name: `Refuse: ${toolWords(call.tool)}`, keys: "r", run: () => setRefusing(true) },
					]
				: [],
	);
	const name = toolWords(call.tool);
	// On a phone the answers are where the composer is else, under the thumb.
	const isNarrow = useSyncExternalStore(onNarrow, () => narrow.matches);
	const slot = keys && isNarrow && !watching ? document.getElementById("answers") : null;
	const footer = watching ? (
		<p className={`${css.footer} text-small text-ink-2`}>An editor or an owner answers.</p>
	) : given || answer.isPending || answer.isSuccess ? (
		<div className={css.footer} role="status">
			<Signal name={given ? "queued" : answer.isPending ? "running" : "done"} label="" />
			<span className="flex-1">{answerWords(given ?? answer.variables ?? {}, given !== undefined)}</span>
			{given && (
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
				setGiven({ approved: false, reason });
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
				autoFocus
				maxLength={1000}
			/>
			<Button type="submit">Refuse</Button>
			<Button look="quiet" onClick={() => setRefusing(false)}>
				Back
			</Button>
		</form>
	) : ask.outcomeUnknown ? (
		<div className={css.footer}>
			<Button onClick={() => setGiven({ outcome: "happened" })}>It happened</Button>
			<Button onClick={() => setGiven({ outcome: "repeat" })}>It did not, do it</Button>
		</div>
	) : (
		<div className={css.footer}>
			<Button look="primary" {...(keys ? { shortcut: "A" } : {})} onClick={() => setGiven({ approved: true })}>
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
		<section className={css.ask} aria-label={`Approval wanted: ${name}`}>
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
						<dd>{ask.outcomeUnknown ? "It may have happened. Look, then tell the agent." : ask.reason}</dd>
					</div>
				)}
			</dl>
			<Exactly args={call.args} summary="Exactly what will be sent" />
			{answer.error && (
				<p className={css.error} role="alert">
					{answer.error.message}
				</p>
			)}
			{slot
				? createPortal(
						<div className={css.thumb} data-answered={given !== undefined || answer.isPending || answer.isSuccess || undefined}>
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

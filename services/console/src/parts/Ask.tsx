import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { unwrap, useClient } from "../client.ts";
import type { Call, Ask as Question } from "../live/conversation.ts";
import { toolWords, until } from "../words.ts";
import css from "./Ask.module.css";
import { Button } from "./controls.tsx";
import { Signal } from "./Signal.tsx";

type Remember = "arguments" | "session" | "workspace";
const remembered: Record<Remember, string> = {
	arguments: "with these arguments",
	session: "in this session",
	workspace: "in the workspace",
};

/**
 * The question whether a call may run, or whether one whose outcome is unknown has happened. Its
 * answer goes to the server at once; the event that confirms it replaces the card.
 */
export function Ask({ call, ask, session }: { call: Call; ask: Question; session: string }) {
	const client = useClient();
	const [refusing, setRefusing] = useState(false);
	const [reason, setReason] = useState("");
	const [remember, setRemember] = useState<Remember | "">("");
	const answer = useMutation({
		mutationFn: (body: { approved?: boolean; outcome?: "happened" | "repeat"; reason?: string }) =>
			unwrap(
				client.api.POST("/api/sessions/{id}/approvals/{tool_call_id}", {
					params: { path: { id: session, tool_call_id: call.id } },
					body: { ...body, ...(remember && body.approved !== undefined ? { remember } : {}) },
				}),
			),
	});
	const name = toolWords(call.tool);
	return (
		<section className={css.ask} aria-label={`Approval wanted: ${name}`}>
			<header>
				<Signal name={ask.outcomeUnknown ? "unknown" : "waiting"} label="" />
				<span className="flex-1">{ask.outcomeUnknown ? `The worker died while “${name}” ran` : `${name}?`}</span>
				{ask.expiresAt && <span className="n text-small">counts as refused in {until(ask.expiresAt)}</span>}
			</header>
			<dl>
				{Object.entries(fields(call.args)).map(([key, value]) => (
					<div key={key}>
						<dt>{key.replaceAll("_", " ")}</dt>
						<dd>{value}</dd>
					</div>
				))}
				{ask.reason && (
					<div>
						<dt>Why you are asked</dt>
						<dd>{ask.outcomeUnknown ? "It may have happened. Look, then tell the agent." : ask.reason}</dd>
					</div>
				)}
			</dl>
			<details>
				<summary>Exactly what will be sent</summary>
				<pre tabIndex={0} role="region" aria-label="Arguments as JSON">
					{JSON.stringify(call.args, null, 2)}
				</pre>
			</details>
			{answer.error && (
				<p className={css.error} role="alert">
					{answer.error.message}
				</p>
			)}
			{refusing ? (
				<form
					className={css.footer}
					onSubmit={(e) => {
						e.preventDefault();
						answer.mutate({ approved: false, reason });
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
					<Button type="submit" busy={answer.isPending}>
						Refuse
					</Button>
					<Button look="quiet" onClick={() => setRefusing(false)}>
						Back
					</Button>
				</form>
			) : ask.outcomeUnknown ? (
				<div className={css.footer}>
					<Button busy={answer.isPending} onClick={() => answer.mutate({ outcome: "happened" })}>
						It happened
					</Button>
					<Button disabled={answer.isPending} onClick={() => answer.mutate({ outcome: "repeat" })}>
						It did not, do it
					</Button>
				</div>
			) : (
				<div className={css.footer}>
					<Button look="primary" busy={answer.isPending} onClick={() => answer.mutate({ approved: true })}>
						Approve
					</Button>
					<Button disabled={answer.isPending} onClick={() => setRefusing(true)}>
						Refuse and say why
					</Button>
					<span className="flex-1" />
					<label className="text-small text-ink-2">
						Don’t ask again{" "}
						<select value={remember} onChange={(e) => setRemember(e.target.value as Remember | "")}>
							<option value="">(ask each time)</option>
							{Object.entries(remembered).map(([value, text]) => (
								<option key={value} value={value}>
									{text}
								</option>
							))}
						</select>
					</label>
				</div>
			)}
		</section>
	);
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

import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { unwrap, useWorkspace } from "../client.ts";
import type { Call } from "../live/conversation.ts";
import { toolWords, until } from "../words.ts";
import css from "./Ask.module.css";
import { Exactly, Fields } from "./Ask.tsx";
import { Button } from "./controls.tsx";
import { Signal } from "./Signal.tsx";

/**
 * A call that a program of the session runs. The program sends the result by itself; a person can give
 * it in the place of one that does not run. The event of the result replaces the card.
 */
export function ClientCall({ call, session, run }: { call: Call; session: string; run: string }) {
	const { client, workspace } = useWorkspace();
	const [giving, setGiving] = useState<"output" | "error">();
	const [text, setText] = useState("");
	const send = useMutation({
		mutationFn: (result: { output: unknown } | { error: string }) =>
			unwrap(
				client.api.POST("/api/sessions/{id}/tool-results/{tool_call_id}", {
					params: { path: { id: session, tool_call_id: call.id } },
					body: { ...result, run_id: run, ...(call.step === undefined ? {} : { step_index: call.step }) },
				}),
			),
	});
	const name = toolWords(call.tool);
	const submit = (e: FormEvent) => {
		e.preventDefault();
		send.mutate(giving === "error" ? { error: text.trim() } : { output: typed(text) });
	};
	return (
		<section className={css.ask} aria-label={`Result wanted: ${name}`}>
			<header>
				<Signal name="waiting" label="" />
				<span className="flex-1">{name} waits for its program</span>
				{call.until && <span className="n text-small">counts as failed in {until(call.until)}</span>}
			</header>
			<dl>
				<Fields of={call.args} />
			</dl>
			<Exactly args={call.args} summary="Exactly what is asked" />
			{send.error && (
				<p className={css.error} role="alert">
					{send.error.message}
				</p>
			)}
			{workspace.role === "viewer" ? null : send.isSuccess ? (
				<div className={css.footer} role="status">
					<Signal name="done" label="" />
					<span>{giving === "error" ? "The agent is told that it failed." : "Sent to the agent."}</span>
				</div>
			) : giving ? (
				<form className={css.footer} onSubmit={submit}>
					<label className="sr" htmlFor={`result-${call.id}`}>
						{giving === "error" ? "Why it failed" : "Result"}
					</label>
					<textarea
						id={`result-${call.id}`}
						className={css.result}
						data-code={giving === "output" || undefined}
						rows={giving === "error" ? 1 : 3}
						value={text}
						onChange={(e) => setText(e.target.value)}
						placeholder={giving === "error" ? "Say why, so that the agent can do better" : "The result, as JSON or as text"}
						autoFocus
						maxLength={60_000}
					/>
					<Button type="submit" busy={send.isPending} disabled={!text.trim()}>
						{giving === "error" ? "Tell the agent" : "Send the result"}
					</Button>
					<Button look="quiet" onClick={() => setGiving(undefined)}>
						Back
					</Button>
				</form>
			) : (
				<div className={css.footer}>
					<span className="flex-1 text-small text-ink-2">The program that has this tool answers by itself. If it does not, you can.</span>
					<Button onClick={() => setGiving("output")}>Give the result</Button>
					<Button onClick={() => setGiving("error")}>It failed</Button>
				</div>
			)}
		</section>
	);
}

/** What a person has typed: the value if it is JSON, else the text. */
function typed(text: string): unknown {
	try {
		return JSON.parse(text);
	} catch {
		return text.trim();
	}
}

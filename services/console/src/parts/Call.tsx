import { ChevronRight } from "lucide-react";
import { memo, useState } from "react";
import type { Call as CallData, CallState } from "../live/conversation.ts";
import { tellingArgument, toolWords } from "../words.ts";
import { Ask } from "./Ask.tsx";
import css from "./Call.module.css";
import { Icon } from "./controls.tsx";
import { Signal, type SignalName } from "./Signal.tsx";

const signals: Record<CallState, SignalName> = {
	arriving: "queued",
	running: "running",
	asking: "waiting",
	done: "done",
	failed: "failed",
	refused: "stopped",
	unknown: "unknown",
};
const folded = 6;

/** The calls of one step: a card with a branch of the line to each. */
export function Calls({ calls, session, run }: { calls: readonly CallData[]; session: string; run: string }) {
	const [all, setAll] = useState(false);
	const shown = all ? calls : calls.slice(0, folded);
	return (
		<div className={css.calls}>
			{shown.map((c) => (
				<Call key={c.id} call={c} session={session} run={run} />
			))}
			{shown.length < calls.length && (
				<button type="button" className={css.fold} onClick={() => setAll(true)}>
					{calls.length - shown.length} more
				</button>
			)}
		</div>
	);
}

const Call = memo(function Call({ call, session, run }: { call: CallData; session: string; run: string }) {
	const [touched, setTouched] = useState<boolean>();
	const open = touched ?? call.state === "failed";
	if (call.state === "asking" && call.ask && !call.ask.decision)
		return (
			<div className={css.call} data-live>
				<Ask call={call} ask={call.ask} session={session} run={run} keys />
			</div>
		);
	return (
		<div className={css.call} data-live={call.state === "running" || undefined}>
			<button type="button" className={css.row} aria-expanded={open} title={call.tool} onClick={() => setTouched(!open)}>
				<Signal name={signals[call.state]} />
				<span className={css.name}>{toolWords(call.tool)}</span>
				<span className={`${css.argument} cut`}>{summary(call)}</span>
				<span className={css.turn} data-open={open || undefined}>
					<Icon of={ChevronRight} size={14} />
				</span>
			</button>
			{open && (
				<dl className={css.more}>
					{call.args !== undefined && <Json name="Arguments" value={call.args} />}
					{call.result !== undefined && <Json name="Result" value={call.result} />}
				</dl>
			)}
		</div>
	);
});

function summary(c: CallData): string {
	if (c.state === "arriving") return c.received > 0 ? `${c.received} characters` : "";
	if (c.state === "refused") return c.ask?.decision?.reason ? `Refused: ${c.ask.decision.reason}` : "Refused";
	if (c.state === "failed" && typeof c.result === "object" && c.result !== null && "error" in c.result) return String(c.result.error);
	return tellingArgument(c.args);
}

function Json({ name, value }: { name: string; value: unknown }) {
	const compact = JSON.stringify(value) ?? "";
	const text = compact.length < 60 ? compact : JSON.stringify(value, null, 2);
	return (
		<>
			<dt className="micro">{name}</dt>
			<dd>
				<pre className={css.json} tabIndex={0} role="region" aria-label={name}>
					{text}
				</pre>
			</dd>
		</>
	);
}

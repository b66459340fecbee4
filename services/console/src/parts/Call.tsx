import { ChevronRight } from "lucide-react";
import { memo, Suspense, useEffect, useState } from "react";
import { type Ask as AskData, asks, type Call as CallData, type CallState, errorOf } from "../live/conversation.ts";
import { usePeople } from "../people.ts";
import { durationWords } from "../run/figures.ts";
import { count, decisionWords, tellingArgument, toolWords } from "../words.ts";
import css from "./Call.module.css";
import { Elapsed } from "./Clock.tsx";
import { Icon } from "./controls.tsx";
import { later } from "./later.tsx";
import { Signal, type SignalName } from "./Signal.tsx";

const details = () => import("./CallDetails.tsx").then((m) => m.CallDetails);
/** Fetched soon after the first row is there, to be there when one is opened. */
const CallDetails = later(details);
/** Fetched when there is a question. */
const Ask = later(() => import("./Ask.tsx").then((m) => m.Ask));
const ClientCall = later(() => import("./ClientCall.tsx").then((m) => m.ClientCall));

const signals: Record<CallState, SignalName> = {
	arriving: "queued",
	queued: "queued",
	running: "running",
	asking: "waiting",
	client: "waiting",
	done: "done",
	failed: "failed",
	refused: "stopped",
	unavailable: "stopped",
	unknown: "unknown",
};
/** More calls than these are folded, except for those that concern a person. */
const folded = 6;
const urgent: readonly CallState[] = ["asking", "client", "failed", "unavailable", "unknown"];

/** The calls of one step: a card with a branch of the line to each. */
export function Calls({ calls, session, run }: { calls: readonly CallData[]; session: string; run: string }) {
	const [all, setAll] = useState(false);
	// A call that a person was asked about stays where its card was.
	const shown = all ? calls : calls.filter((c, i) => i < folded || urgent.includes(c.state) || c.ask);
	const hidden = calls.filter((c) => !shown.includes(c));
	const active = hidden.filter((c) => c.state === "running").length;
	const asking = calls.filter(asks);
	useEffect(() => {
		const idle = setTimeout(() => void details().catch(() => undefined), 500); // opening a row tries again
		return () => clearTimeout(idle);
	}, []);
	const placeOf = (c: CallData) => (asks(c) && asking.length > 1 ? `${asking.indexOf(c) + 1} of ${asking.length}` : "");
	return (
		<div className={css.calls}>
			{shown.map((c) => (
				<Call key={c.id} call={c} session={session} run={run} place={placeOf(c)} />
			))}
			{hidden.length > 0 && (
				<button type="button" className={css.fold} onClick={() => setAll(true)}>
					{hidden.length} more{active > 0 && `, ${active} running`}
				</button>
			)}
		</div>
	);
}

const Call = memo(function Call({ call, session, run, place }: { call: CallData; session: string; run: string; place: string }) {
	const [touched, setTouched] = useState<boolean>();
	const failed = call.state === "failed" || call.state === "unavailable";
	const open = touched ?? failed;
	if (asks(call))
		return (
			<div className={css.call} data-live>
				<Suspense fallback={null}>
					<Ask call={call} ask={call.ask} session={session} run={run} place={place} keys />
				</Suspense>
			</div>
		);
	if (call.state === "client")
		return (
			<div className={css.call} data-live>
				<Suspense fallback={null}>
					<ClientCall call={call} session={session} run={run} />
				</Suspense>
			</div>
		);
	return (
		<div className={css.call} data-live={call.state === "running" || undefined}>
			<button type="button" className={css.row} aria-expanded={open} title={call.tool} onClick={() => setTouched(!open)}>
				<Signal name={signals[call.state]} />
				<span className={css.name}>{toolWords(call.tool)}</span>
				<span className={`${css.argument} cut`}>{(failed && !open && errorOf(call.result)) || summary(call)}</span>
				<span className={`${css.took} n`}>
					{call.state === "running" && call.startedAt ? <Elapsed since={call.startedAt} /> : timeOf(call)}
				</span>
				<span className={css.turn} data-open={open || undefined}>
					<Icon of={ChevronRight} size={14} />
				</span>
			</button>
			{call.ask?.decision && <Decision of={call.ask.decision} />}
			{open && (
				<Suspense fallback={null}>
					<CallDetails call={call} />
				</Suspense>
			)}
		</div>
	);
});

function summary(c: CallData): string {
	if (c.state === "arriving") return c.received > 0 ? `${count(c.received)} characters` : "";
	if (c.state === "queued") return "Queued";
	if (c.state === "running" && c.progress)
		return [c.progress.percent === undefined ? "" : `${c.progress.percent}%`, c.progress.message].filter(Boolean).join(" · ");
	if (c.state === "refused" && !c.ask?.decision) return "Refused";
	return tellingArgument(c.args);
}

const timeOf = (c: CallData) => (c.durationMs === undefined ? "" : durationWords(c.durationMs));

/** Who answered the question about a call, what and when: it stands where the question was. */
function Decision({ of }: { of: NonNullable<AskData["decision"]> }) {
	const { nameOf } = usePeople();
	return <p className={css.answer}>{decisionWords(of, nameOf(of.by))}</p>;
}

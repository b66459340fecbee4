import { Link } from "@tanstack/react-router";
import { ChevronRight, Copy } from "lucide-react";
import { lazy, memo, Suspense, useState } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import { copyText } from "../insecure.ts";
import { type Ask as AskData, asks, type Call as CallData, type CallState, unavailability } from "../live/conversation.ts";
import { usePeople } from "../people.ts";
import { decisionWords, tellingArgument, toolWords } from "../words.ts";
import css from "./Call.module.css";
import { Button, Icon, IconButton } from "./controls.tsx";
import { Signal, type SignalName } from "./Signal.tsx";

/** Fetched when there is a question. */
const Ask = lazy(() => import("./Ask.tsx").then((m) => ({ default: m.Ask })));
const ClientCall = lazy(() => import("./ClientCall.tsx").then((m) => ({ default: m.ClientCall })));

const signals: Record<CallState, SignalName> = {
	arriving: "queued",
	running: "running",
	asking: "waiting",
	client: "waiting",
	done: "done",
	failed: "failed",
	refused: "stopped",
	unavailable: "stopped",
	unknown: "unknown",
};
const folded = 6;

/** The calls of one step: a card with a branch of the line to each. */
export function Calls({ calls, session, run }: { calls: readonly CallData[]; session: string; run: string }) {
	const [all, setAll] = useState(false);
	const shown = all ? calls : calls.slice(0, folded);
	const asking = calls.filter(asks);
	const placeOf = (c: CallData) => (asks(c) && asking.length > 1 ? `${asking.indexOf(c) + 1} of ${asking.length}` : "");
	return (
		<div className={css.calls}>
			{shown.map((c) => (
				<Call key={c.id} call={c} session={session} run={run} place={placeOf(c)} />
			))}
			{shown.length < calls.length && (
				<button type="button" className={css.fold} onClick={() => setAll(true)}>
					{calls.length - shown.length} more
				</button>
			)}
		</div>
	);
}

const Call = memo(function Call({ call, session, run, place }: { call: CallData; session: string; run: string; place: string }) {
	const [touched, setTouched] = useState<boolean>();
	const open = touched ?? (call.state === "failed" || call.state === "unavailable");
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
				<span className={`${css.argument} cut`}>{summary(call)}</span>
				<span className={css.turn} data-open={open || undefined}>
					<Icon of={ChevronRight} size={14} />
				</span>
			</button>
			{call.ask?.decision && <Decision of={call.ask.decision} />}
			{open && (
				<dl className={css.more}>
					{call.state === "unavailable" && <Unavailable result={call.result} />}
					{call.args !== undefined && <Json name="Arguments" value={call.args} />}
					{call.result !== undefined && <Json name="Result" value={call.result} />}
				</dl>
			)}
		</div>
	);
});

function summary(c: CallData): string {
	if (c.state === "arriving") return c.received > 0 ? `${c.received} characters` : "";
	if (c.state === "running" && c.progress)
		return [c.progress.percent === undefined ? "" : `${c.progress.percent}%`, c.progress.message].filter(Boolean).join(" · ");
	if (c.state === "unavailable") return `Cannot be used: ${unavailability(c.result)?.reason}`;
	if (c.state === "refused" && !c.ask?.decision) return "Refused";
	if (c.state === "failed" && typeof c.result === "object" && c.result !== null && "error" in c.result) return String(c.result.error);
	return tellingArgument(c.args);
}

/** Why a tool cannot be used, and where a person does something about it. */
function Unavailable({ result }: { result: unknown }) {
	const { workspace } = useWorkspace();
	const why = unavailability(result);
	if (!why) return null;
	return (
		<>
			<dt className="micro">Why</dt>
			<dd className={css.plain}>
				It cannot be used: {why.reason}. The agent went on without it.{" "}
				{why.connect && workspace.role !== "viewer" && (
					<Link to="/w/$slug/connections" params={{ slug: slugOf(workspace) }}>
						Connect it
					</Link>
				)}
			</dd>
		</>
	);
}

/** Who answered the question about a call, what and when: it stands where the question was. */
function Decision({ of }: { of: NonNullable<AskData["decision"]> }) {
	const { nameOf } = usePeople();
	return <p className={css.answer}>{decisionWords(of, nameOf(of.by))}</p>;
}

/** Arguments or a result: as JSON or, for a list of objects, as a table; with its pictures. */
function Json({ name, value }: { name: string; value: unknown }) {
	const rows = rowsOf(value);
	const [asTable, setAsTable] = useState(false);
	const pictures = picturesOf(value);
	const shown = pictures.length > 0 ? withoutPictures(value) : value;
	const compact = JSON.stringify(shown) ?? "";
	const text = compact.length < 60 ? compact : JSON.stringify(shown, null, 2);
	return (
		<>
			<dt className="micro">{name}</dt>
			<dd className={css.value}>
				{rows && asTable ? (
					<Rows name={name} rows={rows} />
				) : (
					<pre className={css.json} tabIndex={0} role="region" aria-label={name}>
						{text}
					</pre>
				)}
				{pictures.map((p) => (
					<img key={p.slice(0, 80) + p.length} className={css.picture} src={p} alt={`In the ${name.toLowerCase()}`} />
				))}
				<span className={css.tools}>
					{rows && (
						<Button small look="quiet" onClick={() => setAsTable(!asTable)}>
							{asTable ? "As JSON" : "As table"}
						</Button>
					)}
					<IconButton icon={Copy} label={`Copy ${name.toLowerCase()}`} onClick={() => void copyText(JSON.stringify(value, null, 2))} />
				</span>
			</dd>
		</>
	);
}

function Rows({ name, rows }: { name: string; rows: readonly Record<string, unknown>[] }) {
	const columns = [...new Set(rows.flatMap((r) => Object.keys(r)))].slice(0, 12);
	return (
		<div className={css.table} tabIndex={0} role="region" aria-label={name}>
			<table>
				<thead>
					<tr>
						{columns.map((c) => (
							<th key={c} className="micro">
								{c.replaceAll("_", " ")}
							</th>
						))}
					</tr>
				</thead>
				<tbody>
					{rows.slice(0, 200).map((r, i) => (
						// biome-ignore lint/suspicious/noArrayIndexKey: the rows have no other name
						<tr key={i}>
							{columns.map((c) => (
								<td key={c}>{typeof r[c] === "string" ? r[c] : (JSON.stringify(r[c]) ?? "")}</td>
							))}
						</tr>
					))}
				</tbody>
			</table>
		</div>
	);
}

/** The list of objects that a value is, or that is its only list; undefined if there is none. */
function rowsOf(value: unknown): Record<string, unknown>[] | undefined {
	const isRows = (v: unknown): v is Record<string, unknown>[] =>
		Array.isArray(v) && v.length > 0 && v.every((x) => typeof x === "object" && x !== null && !Array.isArray(x));
	if (isRows(value)) return value;
	if (typeof value !== "object" || value === null) return undefined;
	const lists = Object.values(value).filter(isRows);
	return lists.length === 1 ? lists[0] : undefined;
}

/** The text of a picture that is in a value itself. */
const picture = /^data:image\/(png|jpeg|gif|webp);base64,/;

function picturesOf(value: unknown): string[] {
	if (typeof value === "string") return picture.test(value) ? [value] : [];
	if (typeof value !== "object" || value === null) return [];
	return Object.values(value).flatMap(picturesOf).slice(0, 8);
}

/** The same value with sizes in the place of pictures. */
function withoutPictures(value: unknown): unknown {
	return JSON.parse(JSON.stringify(value), (_, v) =>
		typeof v === "string" && picture.test(v) ? `(picture, ${Math.round((v.length * 0.75) / 1000)} kB)` : v,
	);
}

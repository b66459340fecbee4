import { type ReactNode, Suspense, useState } from "react";
import { type Call, errorOf } from "../live/conversation.ts";
import { type Failure, failureOf } from "../live/failure.ts";
import css from "./Call.module.css";
import { CopyButton } from "./CopyButton.tsx";
import { Button, Notice } from "./controls.tsx";
import { later } from "./later.tsx";

/** Fetched when there is something to do about a failure. */
const Remedy = later(() => import("./Remedy.tsx").then((m) => m.Remedy));

/** What an open row shows of a call: why it failed, its arguments and its result. */
export function CallDetails({ call }: { call: Call }) {
	const failure = call.state === "failed" || call.state === "unavailable" ? failureOf(call.result) : undefined;
	const said = errorOf(call.result);
	const unknown = failure !== undefined && failure.text === said; // the tool's own words, in whatever form they have
	return (
		<>
			{failure && <Failed of={unknown ? { ...failure, text: "" } : failure} at={call.endedAt} />}
			<dl className={css.more}>
				{call.args !== undefined && <Json name="Arguments" value={call.args} />}
				{unknown && (
					<Value name="Result" copied={said}>
						<pre className={css.json}>{said}</pre>
					</Value>
				)}
				{call.result !== undefined && !failure && <Json name="Result" value={call.result} />}
			</dl>
		</>
	);
}

/** Why a call failed, and what a person does about it. */
function Failed({ of: { title, text, remedy }, at }: { of: Failure; at: number | undefined }) {
	return (
		<div className={css.failure}>
			<Notice tone="stop">
				<b className="font-bold">{title}</b> {text}
				{remedy && (
					<Suspense fallback={null}>
						<Remedy of={remedy} at={at} />
					</Suspense>
				)}
			</Notice>
		</div>
	);
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
		<Value
			name={name}
			copied={JSON.stringify(value, null, 2)}
			tools={
				rows && (
					<Button small look="quiet" onClick={() => setAsTable(!asTable)}>
						{asTable ? "As JSON" : "As table"}
					</Button>
				)
			}
		>
			{rows && asTable ? <Rows rows={rows} /> : <pre className={css.json}>{text}</pre>}
			{pictures.map((p, i) => (
				// biome-ignore lint/suspicious/noArrayIndexKey: pictures may be the same
				<img key={i} className={css.picture} src={p} alt={`In the ${name.toLowerCase()}`} />
			))}
		</Value>
	);
}

/** A part of a call by its name, in a box with its own scroll, and what can be done with it. */
function Value({ name, copied, tools, children }: { name: string; copied: string; tools?: ReactNode; children: ReactNode }) {
	return (
		<>
			<dt className="micro">{name}</dt>
			<dd className="min-w-0">
				<div className={css.value} tabIndex={0} role="group" aria-label={name}>
					<span className={css.tools}>
						{tools}
						<CopyButton look="quiet" text={copied} />
					</span>
					{children}
				</div>
			</dd>
		</>
	);
}

function Rows({ rows }: { rows: readonly Record<string, unknown>[] }) {
	const columns = [...new Set(rows.flatMap((r) => Object.keys(r)))].slice(0, 12);
	return (
		<table className={css.table}>
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

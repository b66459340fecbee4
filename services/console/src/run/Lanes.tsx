import { type KeyboardEvent, type PointerEvent, useEffect, useLayoutEffect, useRef, useState } from "react";
import { Signal } from "../parts/Signal.tsx";
import { money, tokens, toolWords } from "../words.ts";
import { durationWords } from "./figures.ts";
import css from "./run.module.css";
import { type Row, type Span, type SpanKind, ticks, tickWords, type Waterfall } from "./waterfall.ts";

/** The part of the run that the lanes show, in milliseconds since it began. */
export interface Part {
	from: number;
	to: number;
}

const colours: Record<SpanKind, string> = {
	step: "--hair-strong",
	first: "--live-edge",
	model: "--live",
	tool: "--c-3",
	wait: "--lamp-wait",
	void: "--stop-edge",
	failed: "--lamp-stop",
};

/** The whole run in small, with a window to drag. One canvas, however long the run is. */
export function Small({ fall, part, onPart }: { fall: Waterfall; part: Part; onPart: (p: Part) => void }) {
	const canvas = useRef<HTMLCanvasElement>(null);
	const drag = useRef<{ x: number; from: number; move: boolean } | null>(null);
	const [drawn, setDrawn] = useState(0);
	useEffect(() => {
		const again = () => setDrawn((n) => n + 1);
		const themes = new MutationObserver(again);
		themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
		const sizes = new ResizeObserver(again);
		if (canvas.current) sizes.observe(canvas.current);
		return () => {
			themes.disconnect();
			sizes.disconnect();
		};
	}, []);
	// biome-ignore lint/correctness/useExhaustiveDependencies: it is drawn again for another theme or size
	useLayoutEffect(() => {
		const c = canvas.current;
		const g = c?.getContext("2d");
		if (!c || !g) return;
		const { width, height } = c.getBoundingClientRect();
		const scale = devicePixelRatio;
		c.width = width * scale;
		c.height = height * scale;
		g.scale(scale, scale);
		const style = getComputedStyle(c);
		const each = Math.min(3, (height - 6) / Math.max(1, fall.rows.length));
		fall.rows.forEach((r, i) => {
			for (const s of r.spans) {
				if (s.kind === "step") continue;
				g.fillStyle = style.getPropertyValue(colours[s.kind]);
				g.fillRect(
					(s.from / fall.length) * width,
					3 + i * each,
					Math.max(2, ((s.to - s.from) / fall.length) * width),
					Math.max(1, each - 0.5),
				);
			}
		});
		g.fillStyle = style.getPropertyValue("--note");
		for (const t of fall.takeovers) g.fillRect((t.lost / fall.length) * width, 0, 1, height);
	}, [fall, drawn]);
	const timeOf = (e: PointerEvent<HTMLDivElement>) => {
		const box = e.currentTarget.getBoundingClientRect();
		return Math.min(1, Math.max(0, (e.clientX - box.left) / box.width)) * fall.length;
	};
	const whole = part.from <= 0 && part.to >= fall.length;
	return (
		<div
			className={css.small}
			role="img"
			aria-label={`The whole run, ${durationWords(fall.length)}. The rows show ${whole ? "all of it" : `${durationWords(part.from)} to ${durationWords(part.to)}`}; Z zooms to the chosen row.`}
			onPointerDown={(e) => {
				e.currentTarget.setPointerCapture(e.pointerId);
				const x = timeOf(e);
				drag.current = { x, from: part.from, move: !whole && x > part.from && x < part.to };
			}}
			onPointerMove={(e) => {
				const d = drag.current;
				if (!d) return;
				const x = timeOf(e);
				if (d.move) {
					const span = part.to - part.from;
					const from = Math.min(fall.length - span, Math.max(0, d.from + x - d.x));
					onPart({ from, to: from + span });
				} else if (Math.abs(x - d.x) > fall.length / 100) onPart({ from: Math.min(x, d.x), to: Math.max(x, d.x) });
			}}
			onPointerUp={() => (drag.current = null)}
			onDoubleClick={() => onPart({ from: 0, to: fall.length })}
		>
			<canvas ref={canvas} />
			<i style={{ left: `${(part.from / fall.length) * 100}%`, right: `${100 - (part.to / fall.length) * 100}%` }} />
		</div>
	);
}

const height = 32;
const virtualFrom = 200;

/** The rows on their lanes. Of a long run only the rows in view are on the page. */
export function Lanes({
	fall,
	part,
	chosen,
	onChoose,
	onPart,
}: {
	fall: Waterfall;
	part: Part;
	chosen: string | undefined;
	onChoose: (key: string) => void;
	onPart: (p: Part) => void;
}) {
	const box = useRef<HTMLDivElement>(null);
	const [seen, setSeen] = useState({ top: 0, height: 800 });
	const { rows } = fall;
	const at = rows.findIndex((r) => r.key === chosen);
	const virtual = rows.length > virtualFrom;
	const first = virtual ? Math.max(0, Math.floor(seen.top / height) - 10) : 0;
	const last = virtual ? Math.min(rows.length, first + Math.ceil(seen.height / height) + 20) : rows.length;
	const choose = (i: number) => {
		const row = rows[Math.min(rows.length - 1, Math.max(0, i))];
		const b = box.current;
		if (!row || !b) return;
		onChoose(row.key);
		const top = rows.indexOf(row) * height;
		const headed = b.clientHeight - height;
		if (top < b.scrollTop) b.scrollTop = top;
		else if (top + height > b.scrollTop + headed) b.scrollTop = top + height - headed;
	};
	const onKey = (e: KeyboardEvent) => {
		if (e.metaKey || e.ctrlKey || e.altKey) return;
		const step = (by: 1 | -1) => {
			for (let i = at + by; i >= 0 && i < rows.length; i += by) if (rows[i]?.of.kind === "step") return choose(i);
		};
		const keys: Record<string, () => void> = {
			j: () => choose(at + 1),
			ArrowDown: () => choose(at + 1),
			k: () => choose(at - 1),
			ArrowUp: () => choose(at - 1),
			ArrowRight: () => step(1),
			ArrowLeft: () => step(-1),
			Home: () => choose(0),
			End: () => choose(rows.length - 1),
			z: () => onPart(zoomed(fall, part, rows[at])),
		};
		const act = keys[e.key];
		if (!act) return;
		e.preventDefault();
		e.stopPropagation();
		act();
	};
	const place = (ms: number) => `${((ms - part.from) / (part.to - part.from)) * 100}%`;
	const marks = ticks(part.from, part.to);
	const lines = (
		<>
			{marks.map((t) => t > part.from && <u key={t} style={{ left: place(t) }} />)}
			{fall.takeovers.map((t) => t.lost >= part.from && t.lost <= part.to && <s key={t.claim} style={{ left: place(t.lost) }} />)}
		</>
	);
	return (
		<div
			ref={box}
			className={`scroll ${css.lanes}`}
			role="grid"
			tabIndex={0}
			aria-label="Steps, attempts and calls"
			aria-rowcount={rows.length + 1}
			aria-activedescendant={at >= first && at < last ? `row-${chosen}` : undefined}
			onKeyDown={onKey}
			onScroll={(e) => virtual && setSeen({ top: e.currentTarget.scrollTop, height: e.currentTarget.clientHeight })}
		>
			<div className={css.row} data-head role="row" aria-rowindex={1}>
				<span role="columnheader" className="micro">
					What
				</span>
				<span role="columnheader" className="micro">
					Tokens
				</span>
				<span role="columnheader" className="micro">
					Cost
				</span>
				<span role="columnheader" className={`micro ${css.lane}`} aria-label="Time">
					{marks.map((t) => (
						<em key={t} data-at style={{ left: place(t) }}>
							{tickWords(t, (marks[1] ?? 0) - (marks[0] ?? 0))}
						</em>
					))}
				</span>
			</div>
			{first > 0 && <div style={{ height: first * height }} />}
			{rows.slice(first, last).map((r, i) => (
				// biome-ignore lint/a11y/useKeyWithClickEvents: the grid has the keys
				<div
					key={r.key}
					id={`row-${r.key}`}
					className={css.row}
					role="row"
					tabIndex={-1}
					aria-rowindex={first + i + 2}
					aria-selected={r.key === chosen}
					data-kind={r.of.kind}
					onClick={() => onChoose(r.key)}
				>
					<span role="gridcell" title={r.of.kind === "call" ? toolWords(r.name) : undefined}>
						{(r.of.kind === "step" || r.signal !== "done") && <Signal name={r.signal} />}
						<span className={`cut ${r.of.kind === "call" ? css.mono : ""}`}>{r.name}</span>
					</span>
					<span role="gridcell" className="n">
						{r.tokens === undefined ? "" : tokens(r.tokens)}
					</span>
					<span role="gridcell" className="n">
						{r.costMicros === undefined ? "" : money(r.costMicros)}
					</span>
					<span role="gridcell" className={css.lane}>
						{lines}
						{r.spans.map((s) => (
							<Bar key={`${s.kind}${s.from}`} span={s} part={part} />
						))}
						<Note row={r} part={part} />
					</span>
				</div>
			))}
			{last < rows.length && <div style={{ height: (rows.length - last) * height }} />}
		</div>
	);
}

/** The part that shows a row with a little around it, or the whole run if it is shown already. */
function zoomed(fall: Waterfall, part: Part, row: Row | undefined): Part {
	if (!row) return part;
	const from = Math.min(...row.spans.map((s) => s.from));
	const to = Math.max(...row.spans.map((s) => s.to));
	const around = Math.max(20, (to - from) * 0.2);
	const next = { from: Math.max(0, from - around), to: Math.min(fall.length, to + around) };
	return next.from === part.from && next.to === part.to ? { from: 0, to: fall.length } : next;
}

function Bar({ span, part }: { span: Span; part: Part }) {
	const width = part.to - part.from;
	const from = Math.max(span.from, part.from);
	const to = Math.min(span.to, part.to);
	if (to < part.from || from > part.to) return null;
	return (
		<i
			data-kind={span.kind}
			style={{ left: `${((from - part.from) / width) * 100}%`, width: `${(Math.max(0, to - from) / width) * 100}%` }}
		/>
	);
}

/** The row's words: after its spans, or before them where they end too far right. */
function Note({ row, part }: { row: Row; part: Part }) {
	if (!row.note) return null;
	const width = part.to - part.from;
	const from = (Math.min(...row.spans.map((s) => s.from)) - part.from) / width;
	const to = (Math.max(...row.spans.map((s) => s.to)) - part.from) / width;
	if (to < 0 || from > 1) return null;
	const left = to > 0.66;
	return left ? (
		<em data-before style={{ right: `calc(${Math.min(100, (1 - from) * 100)}% + 6px)` }}>
			{row.note}
		</em>
	) : (
		<em style={{ left: `calc(${to * 100}% + 6px)` }}>{row.note}</em>
	);
}

import { useLayoutEffect, useRef, useState } from "react";
import { type Stack, ticks } from "../usage.ts";
import css from "./Columns.module.css";

const width = 1104;
const height = 240;
const left = 52;
const bottom = 24;
const top = 14;

const colour = (i: number, series: number, others: boolean) =>
	others && i === series - 1 ? "var(--c-6)" : `var(--c-${[1, 2, 3, 5][i] ?? 6})`;

const dayWords = (day: string) =>
	new Date(`${day}T00:00:00Z`).toLocaleDateString(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

/**
 * Stacked columns, one a day. What a day is made of is said in the legend while the pointer is over
 * it, so that nothing covers the chart; a table beside it has the same figures for everybody.
 */
export function Columns({
	stack,
	say,
	label,
	budget,
}: {
	stack: Stack;
	/** Writes a value. */
	say: (n: number) => string;
	/** What the chart shows, in a sentence. */
	label: string;
	/** A limit of each day. */
	budget?: number | undefined;
}) {
	const [over, setOver] = useState<number>();
	const { series, days } = stack;
	const scroller = useRef<HTMLDivElement>(null);
	// Where it is wider than the page, today is what one came to see.
	useLayoutEffect(() => {
		if (scroller.current) scroller.current.scrollLeft = scroller.current.scrollWidth;
	}, []);
	const others = series.at(-1) === "others";
	const marks = ticks(Math.max(stack.most, budget ?? 0));
	const most = marks.at(-1) || 1;
	const y = (v: number) => top + (height - bottom - top) * (1 - v / most);
	const step = (width - left) / days.length;
	const every = Math.ceil(days.length / 6);
	const shown = over === undefined ? undefined : days[over];
	return (
		<>
			<p className={css.legend}>
				<b className="font-mid">{shown ? `${dayWords(shown.day)}: ${say(shown.total)}` : ""}</b>
				{series.map((name, i) => (
					<span key={name}>
						<i style={{ background: colour(i, series.length, others) }} />
						{name.replace(/^[^/]*\//, "")}
						{shown && <span className="n text-ink-3"> {say(shown.values[i] ?? 0)}</span>}
					</span>
				))}
			</p>
			<div ref={scroller} className={css.scroller} tabIndex={0} role="region" aria-label="Chart">
				<svg
					className={css.chart}
					viewBox={`0 0 ${width} ${height}`}
					role="img"
					aria-label={label}
					onPointerLeave={() => setOver(undefined)}
				>
					<defs>
						<pattern id="unfinished" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
							<rect width="2" height="5" fill="var(--raised)" opacity=".45" />
						</pattern>
					</defs>
					{marks.map((v) => (
						<g key={v}>
							<path className={v ? css.grid : css.axis} d={`M${left} ${y(v)}H${width}`} />
							<text x={left - 8} y={y(v) + 4} textAnchor="end">
								{say(v)}
							</text>
						</g>
					))}
					{days.map((d, i) => {
						const x = left + i * step + step * 0.19;
						const last = i === days.length - 1;
						let sum = 0;
						return (
							<g key={d.day} onPointerEnter={() => setOver(i)}>
								<rect
									className={css.hit}
									data-over={i === over || undefined}
									x={left + i * step}
									y={top}
									width={step}
									height={height - bottom - top}
								/>
								{d.values.map((v, j) => {
									const from = y(sum);
									sum += v;
									const to = y(sum);
									return (
										<rect
											key={series[j]}
											x={x}
											y={to}
											width={step * 0.62}
											height={Math.max(v > 0 ? 0.75 : 0, from - to - 1)}
											fill={colour(j, series.length, others)}
										/>
									);
								})}
								{last && d.total > 0 && (
									<rect x={x} y={y(d.total)} width={step * 0.62} height={Math.max(0, y(0) - y(d.total) - 1)} fill="url(#unfinished)" />
								)}
								{(last || (i % every === 0 && i < days.length - every / 2)) && (
									<text x={x + step * 0.31} y={height - 6} textAnchor={last && days.length > 20 ? "end" : "middle"}>
										{last ? "today, so far" : dayWords(d.day)}
									</text>
								)}
							</g>
						);
					})}
					{budget !== undefined && (
						<>
							<path className={css.budget} d={`M${left} ${y(budget)}H${width}`} />
							<text className={css.limit} x={width} y={y(budget) - 5} textAnchor="end">
								Daily budget {say(budget)}
							</text>
						</>
					)}
				</svg>
			</div>
		</>
	);
}

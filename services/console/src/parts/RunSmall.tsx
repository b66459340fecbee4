import type { Schemas } from "@signalbox/client";
import type { CSSProperties } from "react";
import css from "./RunSmall.module.css";

/** paused: between two steps. */
type State = Schemas["Run"]["state"] | "paused";

/** The stop after the steps that are complete; undefined if the run has come to its end. */
const next: Record<State, string | undefined> = {
	queued: "possible",
	running: "now",
	waiting: "waiting",
	paused: "possible",
	failed: "failed",
	cancelled: "possible",
	done: undefined,
};

/** Says it of a run with so many complete steps. */
const words: Record<State, (steps: number) => string> = {
	queued: () => "Not begun",
	running: (steps) => `Step ${steps + 1}`,
	waiting: (steps) => `Step ${steps + 1}`,
	paused: (steps) => `Before step ${steps + 1}`,
	failed: (steps) => `Failed in step ${steps + 1}`,
	cancelled: (steps) => `Stopped in step ${steps + 1}`,
	done: (steps) => (steps === 1 ? "1 step" : `${steps} steps`),
};

const shown = 12;

/** The last stops of a run, and how many are before them. */
export function stopsOf(steps: number, state: State): { before: number; stops: string[] } {
	const last = next[state];
	const all = [...Array<string>(steps).fill("done"), ...(last ? [last] : [])];
	return { before: Math.max(0, all.length - shown), stops: all.slice(-shown) };
}

/** A run in small: a stop a step, the last twelve, and how many were before. `small` is its size in a list. */
export function RunSmall({ steps, state, small }: { steps: number; state: State; small?: boolean }) {
	const { before, stops } = stopsOf(steps, state);
	return (
		<span
			className={css.run}
			style={{ "--stops": stops.length } as CSSProperties}
			data-small={small || undefined}
			role="img"
			aria-label={words[state](steps)}
		>
			{before > 0 && <span className="n">+{before}</span>}
			{stops.map((is, i) => (
				// biome-ignore lint/suspicious/noArrayIndexKey: a stop is its place
				<b key={i} data-is={is} />
			))}
		</span>
	);
}

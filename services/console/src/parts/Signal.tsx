import type { ReactNode } from "react";
import css from "./Signal.module.css";

export type SignalName = "running" | "waiting" | "failed" | "parked" | "queued" | "stopped" | "done" | "unknown" | "idle";

const drawings: Record<SignalName, [string, ReactNode]> = {
	running: [
		"Running",
		<>
			<circle key="h" cx="8" cy="8" r="6" className={css.halo} />
			<circle key="f" cx="8" cy="8" r="3.4" className={css.fill} />
		</>,
	],
	waiting: [
		"Waiting for you",
		<>
			<path key="s" d="M3.5 2v12" className={css.line} />
			<path key="f" d="M3.5 3.2H15l-2.6 2.9L15 9H3.5z" className={css.fill} />
		</>,
	],
	failed: [
		"Failed",
		<>
			<path key="f" d="M5 1.5h6L14.5 5v6L11 14.5H5L1.5 11V5z" className={css.fill} />
			<path key="x" d="M5.7 5.7l4.6 4.6M10.3 5.7l-4.6 4.6" className={css.cross} />
		</>,
	],
	parked: ["Parked", <path key="s" d="M1 8h9.5M11 3.5v9M14 5v6" className={css.line} />],
	queued: ["Queued", <circle key="s" cx="8" cy="8" r="5.2" className={css.line} strokeDasharray="2.3 2.1" />],
	stopped: ["Stopped", <rect key="s" x="3.2" y="3.2" width="9.6" height="9.6" rx="1.5" className={css.line} />],
	done: ["Done", <path key="s" d="M3 8.5l3.2 3.2L13 5" className={css.line} />],
	unknown: [
		"Outcome unknown",
		<path
			key="s"
			d="M5 1.5h6L14.5 5v6L11 14.5H5L1.5 11V5zM6.2 6.3c.2-2.1 3.6-2 3.6-.1 0 1.3-1.8 1.4-1.8 2.7M8 11.2v.01"
			className={css.line}
		/>,
	],
	idle: ["Idle", <circle key="f" cx="8" cy="8" r="2" className={css.fill} />],
};

/** The state of a run or a call, told by its shape first and its colour second. 14 px. An empty label: the text beside it tells. */
export function Signal({ name, label }: { name: SignalName; label?: string }) {
	const [title, drawing] = drawings[name];
	const look = { className: `${css.signal} ${css[name] ?? ""}`, viewBox: "0 0 16 16" };
	if (label === "")
		return (
			<svg {...look} aria-hidden="true">
				{drawing}
			</svg>
		);
	return (
		<svg {...look} role="img" aria-label={label ?? title}>
			{drawing}
		</svg>
	);
}

/** The mark: two tracks, the crossover set between them, and its lamp. It is also the agent's face. */
export function Mark({ size = 22 }: { size?: number }) {
	return (
		<svg className={css.mark} width={size} height={size} viewBox="0 0 24 24" aria-hidden="true">
			<rect width="24" height="24" rx="5.5" />
			<path d="M17 7.6H9.6l4.8 8.8H5" />
			{size >= 16 && <circle cx="18.2" cy="7.6" r="2.3" />}
		</svg>
	);
}

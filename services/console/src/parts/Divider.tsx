import { type KeyboardEvent, type PointerEvent, useState } from "react";
import { storage } from "../storage.ts";
import css from "./Divider.module.css";

const name = "divider";
/** The share of the conversation in per cent, as the panes are by themselves. */
const middle = 48;
const least = 25;
const widest = 75;

const within = (share: number) => Math.min(widest, Math.max(least, share));

/** The share of the pane at the left that the person has chosen, in per cent; kept in the browser. */
export function useSplit() {
	const [share, setShare] = useState<number | undefined>(() => {
		const kept = Number(storage.get(name) ?? "");
		return kept >= least && kept <= widest ? kept : undefined;
	});
	return [
		share,
		(next: number | undefined) => {
			setShare(next);
			if (next === undefined) storage.remove(name);
			else storage.set(name, String(next));
		},
	] as const;
}

/** Between two panes: drags, moves with the arrow keys, and is reset by a double click or Escape. */
export function Divider({
	label,
	share,
	onMove,
}: {
	label: string;
	share: number | undefined;
	onMove: (share: number | undefined) => void;
}) {
	const drag = (e: PointerEvent<HTMLElement>) => {
		const panes = e.currentTarget.parentElement?.getBoundingClientRect();
		if (panes && e.currentTarget.hasPointerCapture(e.pointerId))
			onMove(within(Math.round(((e.clientX - panes.left) / panes.width) * 1000) / 10));
	};
	const keys = (e: KeyboardEvent) => {
		const by = { ArrowLeft: -2, ArrowRight: 2 }[e.key];
		if (by !== undefined) onMove(within((share ?? middle) + by));
		else if (e.key === "Home") onMove(least);
		else if (e.key === "End") onMove(widest);
		else if (e.key === "Escape" || e.key === "Enter") onMove(undefined);
		else return;
		e.preventDefault();
		e.stopPropagation();
	};
	return (
		<div
			className={css.divider}
			role="separator"
			tabIndex={0}
			aria-label={label}
			aria-orientation="vertical"
			aria-valuemin={least}
			aria-valuemax={widest}
			aria-valuenow={Math.round(share ?? middle)}
			title="Drag, or use the arrow keys. A double click resets it."
			onPointerDown={(e) => e.currentTarget.setPointerCapture(e.pointerId)}
			onPointerMove={drag}
			onDoubleClick={() => onMove(undefined)}
			onKeyDown={keys}
		/>
	);
}

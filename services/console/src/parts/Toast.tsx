import { useEffect, useState, useSyncExternalStore } from "react";
import { useActions } from "../actions.ts";
import { Button } from "./controls.tsx";
import css from "./Toast.module.css";

interface Message {
	text: string;
	/** Takes back what was done. */
	undo?: () => void;
}

let current: Message | undefined;
const listeners = new Set<() => void>();

/** Says that something was done elsewhere on the screen, or ends what is said. One at a time. */
export function toast(m: Message | undefined): void {
	current = m;
	for (const f of listeners) f();
}

const subscribe = (f: () => void) => {
	listeners.add(f);
	return () => listeners.delete(f);
};

/** Where it is said: at the bottom left for 6 s, longer under a pointer or with the focus in it. */
export function Toast() {
	const m = useSyncExternalStore(subscribe, () => current);
	const [held, setHeld] = useState(false);
	useEffect(() => {
		if (!m || held) return;
		const t = setTimeout(() => toast(undefined), 6000);
		return () => clearTimeout(t);
	}, [m, held]);
	const undo = m?.undo;
	const back = () => {
		undo?.();
		toast(undefined);
	};
	useActions(undo ? [{ name: "Undo", keys: "mod+z", run: back }] : []);
	return (
		<div role="status" className={css.place}>
			{m && (
				// biome-ignore lint/a11y/noStaticElementInteractions: it only stays while it is looked at
				<div
					className={css.toast}
					onPointerEnter={() => setHeld(true)}
					onPointerLeave={() => setHeld(false)}
					onFocus={() => setHeld(true)}
					onBlur={() => setHeld(false)}
				>
					{m.text}
					{undo && (
						<Button look="quiet" small onClick={back}>
							Undo
						</Button>
					)}
				</div>
			)}
		</div>
	);
}

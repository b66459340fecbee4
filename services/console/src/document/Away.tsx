import type { Editor } from "@tiptap/core";
import { ArrowDown, ArrowUp } from "lucide-react";
import { type RefObject, useEffect, useState } from "react";
import { Button, Icon } from "../parts/controls.tsx";
import { Signal } from "../parts/Signal.tsx";
import css from "./Document.module.css";

/** The agent's carets: people's name their member. */
const caretsOf = (editor: Editor) => [...editor.view.dom.querySelectorAll<HTMLElement>(`.${css.caret}:not([data-member])`)];

/** Says where the agent writes while that is out of sight, and goes there. */
export function Away({ editor, box }: { editor: Editor; box: RefObject<HTMLElement | null> }) {
	const [where, setWhere] = useState<"above" | "below">();
	useEffect(() => {
		const b = box.current;
		if (!b) return;
		let frame = 0;
		const measure = () => {
			const { top, bottom } = b.getBoundingClientRect();
			const sides = caretsOf(editor).map((c) => {
				const at = c.getBoundingClientRect();
				return at.top >= bottom ? "below" : at.bottom <= top ? "above" : undefined;
			});
			setWhere(sides.includes(undefined) ? undefined : sides[0]);
		};
		const again = () => {
			cancelAnimationFrame(frame);
			frame = requestAnimationFrame(measure);
		};
		const size = new ResizeObserver(again);
		size.observe(b);
		size.observe(editor.view.dom);
		b.addEventListener("scroll", again, { passive: true });
		editor.on("transaction", again);
		again();
		return () => {
			cancelAnimationFrame(frame);
			size.disconnect();
			b.removeEventListener("scroll", again);
			editor.off("transaction", again);
		};
	}, [editor, box]);
	if (!where) return null;
	return (
		<Button small className={css.away} onClick={() => caretsOf(editor)[0]?.scrollIntoView({ block: "center" })}>
			<Signal name="running" label="" />
			Signalbox writes {where}
			<Icon of={where === "below" ? ArrowDown : ArrowUp} />
		</Button>
	);
}

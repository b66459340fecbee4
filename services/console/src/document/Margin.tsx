import type { Editor } from "@tiptap/core";
import { useEffect, useState } from "react";
import { Face } from "../parts/controls.tsx";
import css from "./Document.module.css";

interface Place {
	key: string;
	top: number;
	name: string;
	/** Undefined for the agent. */
	id: string | undefined;
}

const near = 24;

/** The faces of those who write, in the margin beside their carets. */
export function Margin({ editor }: { editor: Editor }) {
	const [places, setPlaces] = useState<Place[]>([]);
	useEffect(() => {
		let frame = 0;
		const measure = () => {
			const top = editor.view.dom.getBoundingClientRect().top;
			const found = [...editor.view.dom.querySelectorAll<HTMLElement>(`.${css.caret}`)].map((c, i) => ({
				key: `${c.dataset.who} ${i}`,
				top: Math.round(c.getBoundingClientRect().top - top),
				name: c.dataset.name ?? "",
				id: c.dataset.member,
			}));
			found.sort((a, b) => a.top - b.top);
			// Faces on one line stand below each other.
			for (let i = 1; i < found.length; i++) {
				const [above, at] = [found[i - 1], found[i]];
				if (above && at && at.top < above.top + near) at.top = above.top + near;
			}
			setPlaces((before) => (JSON.stringify(before) === JSON.stringify(found) ? before : found));
		};
		const again = () => {
			cancelAnimationFrame(frame);
			frame = requestAnimationFrame(measure);
		};
		const size = new ResizeObserver(again);
		size.observe(editor.view.dom);
		editor.on("transaction", again);
		again();
		return () => {
			cancelAnimationFrame(frame);
			size.disconnect();
			editor.off("transaction", again);
		};
	}, [editor]);
	return (
		<div className={css.margin}>
			{places.map((p) => (
				<span key={p.key} style={{ top: p.top }} title={p.name}>
					<Face name={`${p.name} writes here`} id={p.id} />
				</span>
			))}
		</div>
	);
}

import { type PointerEvent, type ReactNode, type RefObject, useLayoutEffect, useRef } from "react";
import css from "./Card.module.css";

/** A card beside an element, as long as it is rendered. */
export function Card({
	of,
	onClose,
	children,
	...hover
}: {
	of: RefObject<HTMLElement | null>;
	onClose: () => void;
	children: ReactNode;
	onPointerEnter: (e: PointerEvent) => void;
	onPointerLeave: (e: PointerEvent) => void;
}) {
	const card = useRef<HTMLSpanElement>(null);
	const close = useRef(onClose);
	close.current = onClose;
	useLayoutEffect(() => {
		const place = () => {
			const b = of.current?.getBoundingClientRect();
			const c = card.current;
			if (!b || !c) return;
			const above = b.top > innerHeight / 2;
			c.style.left = `${Math.max(8, Math.min(b.left, innerWidth - c.offsetWidth - 8))}px`;
			c.style.top = above ? "auto" : `${b.bottom + 6}px`;
			c.style.bottom = above ? `${innerHeight - b.top + 6}px` : "auto";
		};
		const onKey = (e: KeyboardEvent) => {
			if (e.key !== "Escape") return;
			e.stopPropagation();
			close.current();
		};
		const onPress = (e: Event) => {
			if (!of.current?.contains(e.target as Node) && !card.current?.contains(e.target as Node)) close.current();
		};
		card.current?.showPopover();
		place();
		addEventListener("scroll", place, { capture: true, passive: true });
		addEventListener("keydown", onKey, true);
		addEventListener("pointerdown", onPress, true);
		return () => {
			removeEventListener("scroll", place, { capture: true });
			removeEventListener("keydown", onKey, true);
			removeEventListener("pointerdown", onPress, true);
		};
	}, [of]);
	return (
		<span ref={card} role="tooltip" popover="manual" className={css.card} {...hover}>
			{children}
		</span>
	);
}

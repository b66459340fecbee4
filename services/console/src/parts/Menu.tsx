import { ChevronDown, type LucideIcon } from "lucide-react";
import { type KeyboardEvent, type ReactNode, useEffect, useId, useRef, useState } from "react";
import { Icon } from "./controls.tsx";
import css from "./Menu.module.css";

/**
 * A button that opens a panel above or below itself. The browser closes it on Escape and on a press
 * elsewhere, and gives the focus back. Its content is rendered while it is open; arrow keys move
 * through its buttons.
 */
export function Menu({
	label,
	icon,
	text,
	children,
}: {
	label: string;
	icon: LucideIcon;
	text?: string;
	children: (close: () => void) => ReactNode;
}) {
	const id = useId();
	const button = useRef<HTMLButtonElement>(null);
	const panel = useRef<HTMLDivElement>(null);
	const [open, setOpen] = useState(false);
	const place = () => {
		const b = button.current?.getBoundingClientRect();
		const p = panel.current;
		if (!b || !p) return;
		const above = b.top > innerHeight / 2;
		p.style.left = `${Math.max(8, Math.min(b.left, innerWidth - 328))}px`;
		p.style.top = above ? "auto" : `${b.bottom + 6}px`;
		p.style.bottom = above ? `${innerHeight - b.top + 6}px` : "auto";
		p.style.maxHeight = `${Math.min(420, (above ? b.top : innerHeight - b.bottom) - 20)}px`;
	};
	// biome-ignore lint/correctness/useExhaustiveDependencies: it reads the window and the two elements
	useEffect(() => {
		if (!open) return;
		addEventListener("resize", place);
		return () => removeEventListener("resize", place);
	}, [open]);
	const onKeyDown = (e: KeyboardEvent) => {
		const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
		if (!by || e.target instanceof HTMLInputElement) return;
		e.preventDefault();
		const all = [...(panel.current?.querySelectorAll<HTMLElement>("button:not([disabled])") ?? [])];
		const at = all.indexOf(document.activeElement as HTMLElement);
		all[(at + by + all.length) % all.length]?.focus();
	};
	return (
		<>
			<button
				ref={button}
				type="button"
				className={css.button}
				popoverTarget={id}
				aria-haspopup="dialog"
				aria-expanded={open}
				aria-label={text ? `${label}: ${text}` : label}
				title={label}
			>
				<Icon of={icon} />
				{text && <span className={`cut ${css.text}`}>{text}</span>}
				<Icon of={ChevronDown} size={14} />
			</button>
			<div
				ref={panel}
				id={id}
				popover="auto"
				role="dialog"
				aria-label={label}
				className={css.panel}
				onBeforeToggle={(e) => e.newState === "open" && place()}
				onToggle={(e) => {
					setOpen(e.newState === "open");
					if (e.newState === "open")
						requestAnimationFrame(() => panel.current?.querySelector<HTMLElement>("[aria-pressed=true], input, button")?.focus());
				}}
				onKeyDown={onKeyDown}
			>
				{open && children(() => panel.current?.hidePopover())}
			</div>
		</>
	);
}

/** One choice in a menu: what it is, and a line about it. */
export function Choice({
	chosen,
	text,
	about,
	disabled,
	onChoose,
}: {
	chosen: boolean;
	text: string;
	about?: ReactNode;
	disabled?: boolean;
	onChoose: () => void;
}) {
	return (
		<button type="button" className={css.choice} aria-pressed={chosen} disabled={disabled} onClick={onChoose}>
			<span>{text}</span>
			{about && <span className={css.about}>{about}</span>}
		</button>
	);
}

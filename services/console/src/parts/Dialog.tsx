import { X } from "lucide-react";
import { type ReactNode, useId, useLayoutEffect, useRef, useState } from "react";
import { Button, IconButton, Notice } from "./controls.tsx";
import css from "./Dialog.module.css";

interface DialogProps {
	title: string;
	onClose: () => void;
	children: ReactNode;
	/** The buttons at the foot. */
	footer?: ReactNode;
	/** The widest it gets, in pixels. */
	width?: number;
	/** A press beside it closes it. Not for dialogs that hold what a person wrote or must copy. */
	light?: boolean;
	/** Without a header; the title is only its name. */
	bare?: boolean;
}

/**
 * A modal dialog, open as long as it is rendered. The browser's own: it keeps focus inside, Escape
 * closes it, and focus returns to where it was. Focus begins at the element with `data-first`, or
 * at the first field.
 */
export function Dialog({ title, onClose, children, footer, width = 480, light, bare }: DialogProps) {
	const dialog = useRef<HTMLDialogElement>(null);
	const name = useId();
	useLayoutEffect(() => {
		const d = dialog.current;
		d?.showModal();
		d?.querySelector<HTMLElement>("[data-first], input:not([type=radio], [type=checkbox]), select, textarea")?.focus();
		return () => d?.close();
	}, []);
	return (
		<dialog
			ref={dialog}
			className={css.dialog}
			style={{ maxWidth: width }}
			{...(bare ? { "aria-label": title } : { "aria-labelledby": name })}
			onCancel={(e) => {
				if (e.target !== e.currentTarget) return;
				e.preventDefault();
				onClose();
			}}
			// A browser closes by itself when Escape is pressed twice.
			onClose={(e) => e.target === e.currentTarget && !e.currentTarget.open && onClose()}
			// The page's keys rest meanwhile.
			onKeyDown={(e) => e.stopPropagation()}
			onPointerDown={(e) => light && e.target === e.currentTarget && onClose()}
		>
			<div className={css.sheet}>
				{!bare && (
					<header className={css.head}>
						<h2 id={name} className="flex-1 text-h3 font-bold">
							{title}
						</h2>
						<IconButton icon={X} label="Close" onClick={onClose} />
					</header>
				)}
				<div className={bare ? css.bare : css.body}>{children}</div>
				{footer && <footer className={css.foot}>{footer}</footer>}
			</div>
		</dialog>
	);
}

/** Asks before something is destroyed. It closes once the action is done, and says why if it was refused. */
export function Confirm({
	title,
	children,
	action,
	keep = "Keep",
	onConfirm,
	onClose,
}: {
	title: string;
	children: ReactNode;
	/** The button's word: what will be done. */
	action: string;
	keep?: string;
	onConfirm: () => Promise<unknown>;
	onClose: () => void;
}) {
	const [busy, setBusy] = useState(false);
	const [error, setError] = useState("");
	const confirm = () => {
		setBusy(true);
		setError("");
		onConfirm().then(onClose, (e: unknown) => {
			setError(e instanceof Error ? e.message : String(e));
			setBusy(false);
		});
	};
	return (
		<Dialog
			title={title}
			width={440}
			onClose={onClose}
			footer={
				<>
					<Button data-first onClick={onClose}>
						{keep}
					</Button>
					<Button look="danger" busy={busy} onClick={confirm}>
						{action}
					</Button>
				</>
			}
		>
			<div className="text-ink-2">{children}</div>
			{error && (
				<div role="alert">
					<Notice tone="stop">{error}</Notice>
				</div>
			)}
		</Dialog>
	);
}

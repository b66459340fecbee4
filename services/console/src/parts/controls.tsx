import type { LucideIcon } from "lucide-react";
import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";
import { caps } from "../actions.ts";
import css from "./controls.module.css";
import { Mark, Signal, type SignalName } from "./Signal.tsx";

/** An icon at the size and weight of the console. */
export function Icon({ of: Of, size = 16 }: { of: LucideIcon; size?: number }) {
	return <Of size={size} strokeWidth={1.5} absoluteStrokeWidth aria-hidden="true" />;
}

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
	/** primary: the one thing to do here. quiet: without a box. danger: destroys something. */
	look?: "plain" | "primary" | "quiet" | "danger";
	small?: boolean;
	icon?: LucideIcon;
	shortcut?: string;
	/** The action runs: the label stays, and the button waits. */
	busy?: boolean;
	ref?: Ref<HTMLButtonElement>;
}

export function Button({ look = "plain", small, icon, shortcut, busy, children, className, ...rest }: ButtonProps) {
	const names = [css.button, css[look], small && css.small, !children && css.square, className].filter(Boolean).join(" ");
	return (
		<button type="button" className={names} aria-busy={busy || undefined} {...rest} disabled={rest.disabled || busy}>
			{busy ? <Signal name="running" label="Working" /> : icon && <Icon of={icon} />}
			{children}
			{shortcut && <kbd>{shortcut}</kbd>}
		</button>
	);
}

/** A button with an icon alone; `label` is its name and its tooltip. */
export function IconButton({ label, ...rest }: ButtonProps & { label: string; icon: LucideIcon }) {
	return <Button look="quiet" small aria-label={label} title={label} {...rest} />;
}

export function Tag({
	tone = "plain",
	signal,
	children,
}: {
	tone?: "plain" | "live" | "wait" | "stop" | "note";
	signal?: SignalName;
	children: ReactNode;
}) {
	return (
		<span className={`${css.tag} ${css[`tag-${tone}`] ?? ""}`}>
			{signal && <Signal name={signal} label="" />}
			{children}
		</span>
	);
}

/** A person's initials on their colour, or the agent's mark. */
export function Face({ name, id }: { name: string; id?: string | undefined }) {
	if (!id)
		return (
			<span className={css.face} role="img" aria-label={name}>
				<Mark />
			</span>
		);
	const colour = ([...id].reduce((sum, c) => sum + c.charCodeAt(0), 0) % 6) + 1;
	const initials = name
		.split(/\s+/)
		.map((w) => w[0] ?? "")
		.join("")
		.slice(0, 2)
		.toUpperCase();
	return (
		<span className={css.face} role="img" aria-label={name} data-colour={colour}>
			{initials}
		</span>
	);
}

/** A choice of one of a few, as buttons side by side. */
export function Segments<T extends string>({
	label,
	value,
	options,
	onChange,
}: {
	label: string;
	value: T;
	options: readonly { value: T; text: ReactNode; title?: string; icon?: LucideIcon }[];
	onChange: (value: T) => void;
}) {
	return (
		<div className={css.segments} role="group" aria-label={label}>
			{options.map((o) => (
				<button key={o.value} type="button" aria-pressed={o.value === value} title={o.title} onClick={() => onChange(o.value)}>
					{o.icon && <Icon of={o.icon} />}
					{o.text}
				</button>
			))}
		</div>
	);
}

/** Keys as caps, such as ⌘ K for "mod+k". */
export function Caps({ keys }: { keys: string }) {
	return caps(keys).map((c) => <kbd key={c}>{c}</kbd>);
}

/** A box that says what happened, what is kept, and what to do. */
export function Notice({
	tone,
	icon,
	children,
}: {
	tone: "plain" | "live" | "wait" | "stop" | "note";
	icon?: LucideIcon;
	children: ReactNode;
}) {
	return (
		<div className={`${css.notice} ${css[`notice-${tone}`] ?? ""}`}>
			{icon && <Icon of={icon} />}
			<div className="min-w-0 flex-1">{children}</div>
		</div>
	);
}

/** An empty or broken place: a drawing of the line, a title, a sentence, something to do. */
export function Blank({
	line,
	title,
	children,
	action,
	heading: Heading = "h2",
}: {
	line: "open" | "clear" | "none" | "broken";
	title: string;
	children?: ReactNode;
	action?: ReactNode;
	/** h1 where it is the whole page. */
	heading?: "h1" | "h2";
}) {
	return (
		<div className={css.blank}>
			<svg viewBox="0 0 152 44" aria-hidden="true">
				{line === "open" && (
					<>
						<path className={css.track} d="M2 12h62l16 20M2 32h148" />
						<circle className={css.dot} cx="64" cy="12" r="4" />
					</>
				)}
				{line === "clear" && (
					<>
						<path className={css.track} d="M2 12h80" />
						<path className={css.lit} d="M2 32h62l18-20h68" />
						<circle className={css.litDot} cx="118" cy="12" r="4" />
					</>
				)}
				{line === "none" && <path className={css.track} d="M2 12h148M2 32h148M40 12l16 20M112 12L96 32" />}
				{line === "broken" && (
					<>
						<path className={css.track} d="M2 22h60M90 22h60" />
						<path className={css.red} d="M64 12v20M88 12v20" />
					</>
				)}
			</svg>
			<Heading className="text-h3 font-bold">{title}</Heading>
			{children && <p>{children}</p>}
			{action && <div className="mt-2 flex gap-2">{action}</div>}
		</div>
	);
}

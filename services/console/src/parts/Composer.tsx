import { ArrowUp, CornerUpRight, ListPlus } from "lucide-react";
import { type KeyboardEvent, type ReactNode, useEffect, useLayoutEffect, useRef, useState } from "react";
import { composes, mac } from "../actions.ts";
import css from "./Composer.module.css";
import { IconButton, Segments } from "./controls.tsx";

export type Mode = "queue" | "steer";

/** The draft of a session, which survives a reload and a sign-out. */
export const drafts = {
	read: (key: string) => localStorage.getItem(`draft:${key}`) ?? "",
	write(key: string, text: string) {
		if (text) localStorage.setItem(`draft:${key}`, text);
		else localStorage.removeItem(`draft:${key}`);
	},
	/** Replaces the draft, in a composer that is open too. */
	set(key: string, text: string) {
		drafts.write(key, text);
		for (const f of composers) f(key, text);
	},
};
const composers = new Set<(key: string, text: string) => void>();

interface Props {
	/** Names the draft: the session's id, or "new". */
	draft: string;
	/** A run is active: messages queue or steer. */
	running: boolean;
	/** A call waits for an answer. */
	asked?: boolean;
	placeholder?: string;
	/** What stands at the left below the text, such as the choice of a model. */
	tools?: ReactNode;
	/** Why nothing can be sent now. */
	blocked?: string;
	autoFocus?: boolean;
	onSend: (text: string, mode: Mode) => void;
	/** Arrow up in an empty composer. */
	onRecall?: () => string | undefined;
}

const touch = () => matchMedia("(pointer: coarse)").matches;

/** Where a person writes. Its text is its own state, so that typing renders nothing else. */
export function Composer({ draft, running, asked, placeholder, tools, blocked, autoFocus, onSend, onRecall }: Props) {
	const [text, setText] = useState(() => drafts.read(draft));
	const [mode, setMode] = useState<Mode>("queue");
	const area = useRef<HTMLTextAreaElement>(null);

	useEffect(() => {
		setText(drafts.read(draft));
		const replace = (key: string, replaced: string) => {
			if (key !== draft) return;
			setText(replaced);
			area.current?.focus();
		};
		composers.add(replace);
		return () => void composers.delete(replace);
	}, [draft]);
	useEffect(() => {
		const t = setTimeout(() => drafts.write(draft, text), 150);
		return () => {
			clearTimeout(t);
			drafts.write(draft, text);
		};
	}, [draft, text]);
	// biome-ignore lint/correctness/useExhaustiveDependencies: the height follows the text
	useLayoutEffect(() => {
		const a = area.current;
		if (!a) return;
		a.style.height = "auto";
		a.style.height = `${Math.min(a.scrollHeight, innerHeight * 0.4)}px`;
	}, [text]);

	const send = (how: Mode) => {
		const said = text.trim();
		if (!said || blocked) return;
		drafts.write(draft, "");
		setText("");
		onSend(said, how);
	};
	const onKeyDown = (e: KeyboardEvent<HTMLTextAreaElement>) => {
		if (composes(e.nativeEvent)) return;
		if (e.key === "Enter" && (e.metaKey || e.ctrlKey)) {
			e.preventDefault();
			send(mode === "queue" ? "steer" : "queue");
		} else if (e.key === "Enter" && !e.shiftKey && !touch()) {
			e.preventDefault();
			send(mode);
		} else if (e.key === "ArrowUp" && !e.altKey && !e.metaKey && text === "") {
			const last = onRecall?.();
			if (last) {
				e.preventDefault();
				setText(last);
			}
		}
	};
	return (
		<div className={css.dock}>
			<div className={css.composer}>
				<label className="sr" htmlFor="say">
					Message
				</label>
				<textarea
					ref={area}
					id="say"
					rows={running ? 1 : 2}
					value={text}
					autoFocus={autoFocus}
					placeholder={
						asked
							? "Or say what should be different"
							: running
								? "Add to the queue, or steer the next step"
								: (placeholder ?? "Say what comes next")
					}
					onChange={(e) => setText(e.target.value)}
					onKeyDown={onKeyDown}
				/>
				<div className={css.tools}>
					{tools}
					<span className="flex-1" />
					{running && (
						<Segments
							label="When to deliver"
							value={mode}
							onChange={setMode}
							options={[
								{ value: "queue", text: "Queue", icon: ListPlus, title: "After this run" },
								{ value: "steer", text: "Steer", icon: CornerUpRight, title: "Before the next step" },
							]}
						/>
					)}
					<IconButton
						look="primary"
						icon={ArrowUp}
						label={running ? (mode === "queue" ? "Send to the queue" : "Steer") : "Send"}
						disabled={!text.trim() || Boolean(blocked)}
						onClick={() => send(mode)}
					/>
				</div>
			</div>
			<div className={css.under}>
				<span>
					{blocked ??
						(running ? (
							<>
								<b>Queue</b> waits for the run to end. <b>Steer</b> joins before the next step.
							</>
						) : (
							"Tools that change things outside ask you first."
						))}
				</span>
				<span className={css.keys}>
					<kbd>{running ? (mac ? "⌘ ↵" : "Ctrl ↵") : "↵"}</kbd> {running ? (mode === "queue" ? "steers" : "queues") : "send"}
				</span>
			</div>
		</div>
	);
}

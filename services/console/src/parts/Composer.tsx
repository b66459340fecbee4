import { ArrowUp, CornerUpRight, FileText, ListPlus, Paperclip, Pencil, X } from "lucide-react";
import {
	type ClipboardEvent,
	type DragEvent,
	type KeyboardEvent,
	type ReactNode,
	useEffect,
	useLayoutEffect,
	useRef,
	useState,
	useSyncExternalStore,
} from "react";
import { composes, keyOf, mac } from "../actions.ts";
import type { File as Attached } from "../live/conversation.ts";
import { readFiles } from "../live/files.ts";
import { hasUnsaved, onUnsaved, storage } from "../storage.ts";
import css from "./Composer.module.css";
import { Icon, IconButton, Segments } from "./controls.tsx";

export type Mode = "queue" | "steer";

/** The draft of a session, which survives a reload and a sign-out unless the browser refuses to keep it. */
export const drafts = {
	read: (key: string) => storage.get(`draft:${key}`) ?? "",
	write(key: string, text: string) {
		if (text) storage.set(`draft:${key}`, text);
		else storage.remove(`draft:${key}`);
	},
	/** Replaces the draft, in a composer that is open too. */
	set(key: string, text: string, files: readonly Attached[] = []) {
		drafts.write(key, text);
		for (const f of composers) f(key, text, files);
	},
	/** Gives the reason of a refusal back that was not delivered, unless something else has been written. */
	giveBack(key: string, reason: string) {
		if (drafts.read(key)) return;
		drafts.write(key, reason);
		for (const f of composers) f(key, reason, [], true);
	},
};
const composers = new Set<(key: string, text: string, files: readonly Attached[], refuses?: boolean) => void>();

export interface Suggestion {
	text: string;
	about?: string;
	/** Replaces the word; a function is called and the word removed. */
	becomes: string | (() => void);
}

interface Props {
	/** Names the draft: the session's id, or "new". Another draft is another composer. */
	draft: string;
	/** A run is active: messages queue or steer. */
	running: boolean;
	/** The message that is edited: its new text becomes another version of it. */
	editing?: { files: readonly Attached[]; onCancel: () => void } | undefined;
	/** How many calls wait for approval: what is written refuses all of them. */
	refuses?: number;
	placeholder?: string;
	/** What stands at the left below the text, such as the choice of a model. */
	tools?: ReactNode;
	/** Why nothing can be sent now. */
	blocked?: string;
	autoFocus?: boolean;
	onSend: (text: string, mode: Mode, files: readonly Attached[]) => void;
	/** Refuses the calls, for a reason. */
	onRefuse?: (reason: string) => void;
	/** Takes the last refusal back; true if it was not sent yet. */
	onTakeBack?: () => boolean;
	/** What a word that begins with @ or / can become, given its letters. */
	suggest?: (sign: "@" | "/", letters: string) => Promise<Suggestion[]>;
	/** Arrow up in an empty composer; true if it did something. */
	onRecall?: () => boolean;
}

const touch = () => matchMedia("(pointer: coarse)").matches;

/** The longest reason of a refusal, in characters. */
const longestReason = 1000;

/**
 * Where a person writes. Its text is its own state, so that typing renders nothing else.
 *
 * While calls wait for approval, Return refuses them with the text: all of them, because the text does not
 * say which of them it is about. A text that was begun before the question, and one
 * with files, which a refusal cannot carry, is a message as ever.
 */
export function Composer(props: Props) {
	const {
		draft,
		running,
		refuses = 0,
		placeholder,
		tools,
		blocked,
		autoFocus,
		editing,
		onSend,
		onRefuse,
		onTakeBack,
		onRecall,
		suggest,
	} = props;
	const [text, setText] = useState(() => drafts.read(draft));
	const [mode, setMode] = useState<Mode>("queue");
	const area = useRef<HTMLTextAreaElement>(null);
	const clip = useRef<HTMLInputElement>(null);
	const [files, setFiles] = useState<readonly Attached[]>(editing?.files ?? []);
	const [limit, setLimit] = useState("");
	const [over, setOver] = useState(false);
	const offers = useSuggestions(suggest);
	const unkept = useSyncExternalStore(onUnsaved, hasUnsaved);
	const [begunBefore, setBegunBefore] = useState(true);
	useEffect(() => {
		if (refuses === 0 && !begunBefore) setBegunBefore(true);
	}, [refuses, begunBefore]);
	const mayRefuse = refuses > 0 && !editing;
	const refusing = mayRefuse && files.length === 0 && !(begunBefore && text !== "");
	const tooLong = refusing && [...text.trim()].length > longestReason;

	const attach = async (list: FileList | null | undefined) => {
		if (!list?.length) return;
		const { read, error } = await readFiles([...list], files);
		setFiles((before) => [...before, ...read]);
		setLimit(error);
	};
	/** Puts a suggestion in the place of the word at the caret. */
	const take = (s: Suggestion) => {
		const a = area.current;
		const at = a?.selectionStart ?? text.length;
		const start = text.slice(0, at).search(/[@/]\S*$/);
		if (start < 0) return;
		const put = typeof s.becomes === "string" ? `${s.becomes} ` : "";
		if (typeof s.becomes === "function") s.becomes();
		setText(text.slice(0, start) + put + text.slice(at));
		offers.end();
		requestAnimationFrame(() => a?.setSelectionRange(start + put.length, start + put.length));
		a?.focus();
	};

	useEffect(() => {
		setText(drafts.read(draft));
		const replace = (key: string, replaced: string, carried: readonly Attached[], refusal = false) => {
			if (key !== draft) return;
			setText(replaced);
			if (refusal) {
				// It may come back while the person is elsewhere, or has attached files meanwhile.
				setBegunBefore(false);
				return;
			}
			setFiles(carried);
			area.current?.focus();
		};
		composers.add(replace);
		return () => void composers.delete(replace);
	}, [draft]);
	useEffect(() => drafts.write(draft, text), [draft, text]);
	// biome-ignore lint/correctness/useExhaustiveDependencies: once, when the edit begins
	useEffect(() => {
		if (editing) area.current?.setSelectionRange(text.length, text.length);
	}, []);
	// biome-ignore lint/correctness/useExhaustiveDependencies: the height follows the text
	useLayoutEffect(() => {
		const a = area.current;
		if (!a) return;
		a.style.height = "auto";
		a.style.height = `${Math.min(a.scrollHeight, innerHeight * 0.4)}px`;
	}, [text]);

	const empty = () => {
		drafts.write(draft, "");
		setText("");
		setFiles([]);
		setLimit("");
	};
	const send = (how: Mode) => {
		const said = text.trim();
		if ((!said && files.length === 0) || blocked) return;
		empty();
		onSend(said, how, files);
	};
	/** What Return and the button do. */
	const go = () => {
		if (!refusing) return send(mode);
		const reason = text.trim();
		if (!reason || tooLong) return;
		empty();
		onRefuse?.(reason);
	};
	const onKeyDown = (e: KeyboardEvent<HTMLTextAreaElement>) => {
		if (composes(e.nativeEvent)) return;
		const offered = offers.found[offers.at];
		const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
		if (offered && (by || e.key === "Enter" || e.key === "Tab" || e.key === "Escape")) {
			e.preventDefault();
			if (by) offers.move(by);
			else if (e.key === "Escape") offers.end();
			else take(offered);
			return;
		}
		if (e.key === "Enter" && (e.metaKey || e.ctrlKey)) {
			e.preventDefault();
			send(!refusing && mode === "queue" ? "steer" : "queue");
		} else if (e.key === "Enter" && !e.shiftKey && !touch()) {
			e.preventDefault();
			go();
		} else if (keyOf(e.nativeEvent) === "mod+z" && text === "") {
			if (onTakeBack?.()) e.preventDefault();
		} else if (e.key === "ArrowUp" && !e.altKey && !e.metaKey && text === "") {
			if (onRecall?.()) e.preventDefault();
		} else if (e.key === "Escape" && editing) {
			e.preventDefault();
			editing.onCancel();
		}
	};
	return (
		<div className={css.dock}>
			{/* biome-ignore lint/a11y/noStaticElementInteractions: the button with the clip does the same */}
			<div
				className={css.composer}
				data-over={over || undefined}
				onDragOver={(e: DragEvent) => {
					if (!e.dataTransfer.types.includes("Files")) return;
					e.preventDefault();
					setOver(true);
				}}
				onDragLeave={() => setOver(false)}
				onDrop={(e: DragEvent) => {
					setOver(false);
					if (!e.dataTransfer.files.length) return;
					e.preventDefault();
					void attach(e.dataTransfer.files);
				}}
				onPaste={(e: ClipboardEvent) => {
					if (!e.clipboardData.files.length) return;
					e.preventDefault();
					void attach(e.clipboardData.files);
				}}
			>
				{offers.found.length > 0 && (
					<div className={css.offers} id="say-offers" role="listbox" aria-label="Suggestions">
						{offers.found.map((o, i) => (
							// biome-ignore lint/a11y/useKeyWithClickEvents: the field has the keys
							<div
								key={`${o.text}${o.about}`}
								id={`say-${i}`}
								role="option"
								tabIndex={-1}
								aria-selected={i === offers.at}
								onClick={() => take(o)}
							>
								<span className="cut">{o.text}</span>
								{o.about && <span className="text-small text-ink-2">{o.about}</span>}
							</div>
						))}
					</div>
				)}
				{files.length > 0 && (
					<ul className={css.files} aria-label="Files of the message">
						{files.map((f, i) => (
							// biome-ignore lint/suspicious/noArrayIndexKey: files may be the same
							<li key={i}>
								{f.mediaType.startsWith("image/") ? <img src={f.url} alt="" /> : <Icon of={FileText} />}
								<span className="cut">{f.name}</span>
								<IconButton icon={X} label={`Remove ${f.name}`} onClick={() => setFiles(files.filter((x) => x !== f))} />
							</li>
						))}
					</ul>
				)}
				{editing && (
					<p className={css.editing}>
						<Icon of={Pencil} />
						<span className="flex-1">You edit a message. What it said before, and its answer, stay as another version.</span>
						<IconButton icon={X} label="Leave it as it was" onClick={editing.onCancel} />
					</p>
				)}
				{unkept && (
					<p className={css.limit} role="status">
						This browser's storage is full, so drafts cannot be kept. What you have not sent is lost when you close this page.
					</p>
				)}
				{limit && (
					<p className={css.limit} role="alert">
						{limit}
					</p>
				)}
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
						mayRefuse
							? `Or say what should be different: this refuses ${refuses === 1 ? "the call" : `all ${refuses} calls`}`
							: running
								? "Add to the queue, or steer the next step"
								: (placeholder ?? "Say what comes next")
					}
					aria-describedby="say-hint"
					aria-controls={offers.found.length ? "say-offers" : undefined}
					aria-activedescendant={offers.found.length ? `say-${offers.at}` : undefined}
					onChange={(e) => {
						if (text === "") setBegunBefore(refuses === 0);
						setText(e.target.value);
						offers.look(e.target.value.slice(0, e.target.selectionStart));
					}}
					onBlur={() => setTimeout(offers.end, 200)}
					onKeyDown={onKeyDown}
				/>
				<div className={css.tools}>
					<IconButton icon={Paperclip} label="Add pictures or files" onClick={() => clip.current?.click()} />
					<input
						ref={clip}
						type="file"
						multiple
						hidden
						onChange={(e) => {
							void attach(e.target.files);
							e.target.value = "";
						}}
					/>
					{tools}
					<span className="flex-1" />
					{running && !refusing && (
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
						label={refusing ? "Refuse with this reason" : running ? (mode === "queue" ? "Send to the queue" : "Steer") : "Send"}
						disabled={(!text.trim() && files.length === 0) || Boolean(blocked) || tooLong}
						onClick={go}
					/>
				</div>
			</div>
			<div className={css.under}>
				<span id="say-hint">{blocked ?? <Hint {...{ running, refusing, tooLong, keepsQuestion: mayRefuse }} />}</span>
				<span className={css.keys}>
					{refusing && (
						<>
							<kbd>↵</kbd> refuses{" "}
						</>
					)}
					<kbd>{running ? (mac ? "⌘ ↵" : "Ctrl ↵") : "↵"}</kbd> {running ? (!refusing && mode === "queue" ? "steers" : "queues") : "send"}
				</span>
			</div>
		</div>
	);
}

/** What becomes of the text. */
function Hint(p: { running: boolean; refusing: boolean; tooLong: boolean; keepsQuestion: boolean }) {
	if (p.tooLong) return `A refusal has at most ${longestReason} characters.`;
	if (p.refusing) return "This text refuses. The agent reads why, and goes on.";
	if (p.keepsQuestion) return "This is a message, and leaves the question open.";
	if (!p.running) return "Tools that change things outside ask you first.";
	return (
		<>
			<b>Queue</b> waits for the run to end. <b>Steer</b> joins before the next step.
		</>
	);
}

/** What the word before the caret could become. Only the answer to the newest word counts. */
function useSuggestions(suggest: Props["suggest"]) {
	const [found, setFound] = useState<readonly Suggestion[]>([]);
	const [at, setAt] = useState(0);
	const newest = useRef(0);
	const end = () => {
		newest.current++;
		setFound([]);
	};
	return {
		found,
		at: Math.min(at, Math.max(0, found.length - 1)),
		end,
		move: (by: number) => setAt((a) => (a + by + found.length) % found.length),
		look(before: string) {
			const word = /(?:^|\s)(@)(\S{0,40})$|^(\/)(\S{0,40})$/.exec(before);
			const sign = (word?.[1] ?? word?.[3]) as "@" | "/" | undefined;
			if (!suggest || !word || !sign) return found.length > 0 && end();
			const mine = ++newest.current;
			suggest(sign, word[2] ?? word[4] ?? "").then(
				(s) => {
					if (mine !== newest.current) return;
					setFound(s.slice(0, 8));
					setAt(0);
				},
				() => undefined, // without an answer nothing is suggested
			);
		},
	};
}

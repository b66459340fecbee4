import type { DocumentConnection, DocumentState } from "@signalbox/client/document";
import { Editor } from "@tiptap/core";
import Collaboration from "@tiptap/extension-collaboration";
import CollaborationCaret from "@tiptap/extension-collaboration-caret";
import { Slice } from "@tiptap/pm/model";
import type { Transaction } from "@tiptap/pm/state";
import { ySyncPluginKey } from "@tiptap/y-tiptap";
import { Bold, History as HistoryIcon, Italic, List, ListOrdered, ListTodo, type LucideIcon, Quote, Redo2, Undo2 } from "lucide-react";
import { type MouseEvent, useEffect, useRef, useState } from "react";
import { signedOut, unwrap, useClient } from "../client.ts";
import { copyText } from "../insecure.ts";
import { CopyButton } from "../parts/CopyButton.tsx";
import { Button, Face, IconButton, Notice, Tag } from "../parts/controls.tsx";
import { toast } from "../parts/Toast.tsx";
import { Away } from "./Away.tsx";
import { useDocument } from "./connection.ts";
import css from "./Document.module.css";
import type { Draft } from "./draft.ts";
import { Fresh } from "./fresh.ts";
import { Margin } from "./Margin.tsx";
import { schema } from "./schema.ts";

interface Person {
	client: number;
	name: string;
	/** The member's id; undefined for the agent. */
	member: string | undefined;
	/** The agent's run; undefined for a person. */
	run: string | undefined;
}

const words: Partial<Record<DocumentState, [tone: "wait" | "stop", title: string, text: string]>> = {
	lost: ["wait", "No connection.", "What you write is kept in this browser and merged when the line is back."],
	"signed-out": ["stop", "You are signed out.", "Sign in again to go on; the text stays on this page."],
	"no-member": ["stop", "You left the workspace.", "The text stays on this page."],
	deleted: ["stop", "This document was deleted.", "The text stays on this page; copy what you need."],
	"too-large": ["stop", "The last change is too large.", "It was not stored, and others do not see it. Copy it, then reload the page."],
};

const notKept = "What you write cannot be kept in this browser, and is merged when the line is back: keep this page open until then.";

/** A document, live: people and agents write in it at the same time. */
export default function Document({ id, me, readOnly }: { id: string; me: { id: string; name: string }; readOnly: boolean }) {
	const { connected, line, here, keeps, draft } = useDocument(id, me.id);
	useLeaveWarning(draft);
	useEffect(() => {
		if (line === "signed-out") signedOut.tell();
	}, [line]);
	const told = words[line];
	const [typed, setTyped] = useState("");
	return (
		<div className={css.document}>
			{told && (
				<div role="status">
					<Notice tone={told[0]}>
						<b className="font-bold">{told[1]}</b> {line === "lost" && !here && "The text has not come yet. "}
						{line === "lost" && !keeps ? notKept : told[2]}
						{line !== "lost" && (
							<span className="mt-2 flex gap-2">
								{line === "signed-out" && (
									<a href="/sign-in" target="_blank" rel="noopener">
										Sign in in another tab, then reload
									</a>
								)}
								<CopyAll />
							</span>
						)}
						{line === "too-large" && typed && (
							<div className={css.refused}>
								<pre tabIndex={0} role="region" aria-label="The change that was not stored">
									{typed}
								</pre>
								<CopyButton text={typed}>Copy the change</CopyButton>
							</div>
						)}
					</Notice>
				</div>
			)}
			{readOnly && <Notice tone="plain">You are reading. Viewers cannot type here. You see every change as it happens.</Notice>}
			{connected && (
				<Sheet
					key={id}
					id={id}
					connected={connected}
					line={line}
					me={me}
					readOnly={readOnly || (told !== undefined && line !== "lost")}
					onTyped={setTyped}
				/>
			)}
		</div>
	);
}

/** Copies the text of the document that is on the page, also if the server has it no longer. */
function CopyAll() {
	const [copied, setCopied] = useState(false);
	const copy = (e: MouseEvent<HTMLElement>) => {
		const text = e.currentTarget.closest(`.${css.document}`)?.querySelector<HTMLElement>("[role=textbox]")?.innerText ?? "";
		void copyText(text).then(() => setCopied(true));
	};
	return (
		<Button small onClick={copy}>
			{copied ? "Copied" : "Copy all"}
		</Button>
	);
}

function Sheet({
	id,
	connected,
	line,
	me,
	readOnly,
	onTyped,
}: {
	id: string;
	connected: DocumentConnection;
	line: DocumentState;
	me: { id: string; name: string };
	readOnly: boolean;
	/** Called with the text of what the person has put in last. */
	onTyped: (text: string) => void;
}) {
	const place = useRef<HTMLDivElement>(null);
	const box = useRef<HTMLDivElement>(null);
	const [editor, setEditor] = useState<Editor | null>(null);
	const people = usePeople(connected);
	const typing = useRef({ at: 0, text: "" });
	// Writing shows who has written; an agent that only reads has nothing to undo.
	const [written, setWritten] = useState(0);
	const run = people.find((p) => p.run)?.run;
	const [undoable, setUndoable] = useState<string>();
	useEffect(() => {
		if (written > 0 && run) setUndoable(run);
	}, [written, run]);
	useEffect(() => {
		if (!place.current) return;
		const made = new Editor({
			element: place.current,
			injectCSS: false, // the policy allows no styles but the page's files
			editable: false,
			content: { type: "doc", content: [{ type: "paragraph" }] }, // until the document comes; as HTML it would be parsed
			extensions: [
				...schema,
				Collaboration.configure({ document: connected.doc }),
				CollaborationCaret.configure({
					provider: connected.provider,
					user: { name: me.name, color: colourOf(me.id), member_id: me.id },
					render: caret,
					selectionRender: (user) => ({ class: css.selection ?? "", "data-colour": String(user.color) }),
				}),
				Fresh.configure({
					doc: connected.doc,
					provider: connected.provider,
					look: css.fresh ?? "",
					onFresh: () => setWritten((n) => n + 1),
				}),
			],
			onTransaction: ({ transaction }) => {
				if (!transaction.docChanged || transaction.getMeta(ySyncPluginKey)) return;
				const text = inserted(transaction);
				const goesOn = Date.now() - typing.current.at < 2_000;
				typing.current = { at: Date.now(), text: ((goesOn ? typing.current.text : "") + text).slice(-1_000_000) };
				if (text) onTyped(typing.current.text);
			},
			editorProps: { attributes: { "aria-label": "Document", role: "textbox", "aria-multiline": "true", class: css.sheet ?? "" } },
		});
		setEditor(made);
		return () => made.destroy();
	}, [connected, me.id, me.name, onTyped]);
	const live = line === "live" || line === "lost";
	useEffect(() => {
		editor?.setEditable(live && !readOnly, false);
	}, [editor, live, readOnly]);
	const others = people.filter((p) => p.client !== connected.doc.clientID);
	return (
		<>
			<div className={css.bar} role="toolbar" aria-label="Formatting">
				{editor && !readOnly && <Tools editor={editor} />}
				<span className="flex-1" />
				{undoable && !readOnly && line === "live" && <UndoEdits document={id} run={undoable} onDone={() => setUndoable(undefined)} />}
				{run && <span className={`${css.says} text-small text-ink-3`}>Signalbox is {written > 0 ? "writing" : "reading"}</span>}
				<span className="flex gap-1">
					{others.map((p) => (
						<Face key={p.client} name={p.run ? "Signalbox, the agent" : p.name} id={p.member} />
					))}
				</span>
				<Tag tone={line === "live" ? "live" : "plain"}>{line === "live" ? "Live" : line === "connecting" ? "Connecting" : "Offline"}</Tag>
			</div>
			<div className={css.frame}>
				<div ref={box} className="scroll">
					<div className={css.page}>
						{editor && <Margin editor={editor} />}
						<div ref={place} />
					</div>
				</div>
				{editor && run && written > 0 && <Away editor={editor} box={box} />}
			</div>
		</>
	);
}

/** The text that a transaction puts into the document. */
function inserted(transaction: Transaction): string {
	return transaction.steps
		.flatMap((s) => ("slice" in s && s.slice instanceof Slice ? [s.slice.content.textBetween(0, s.slice.content.size, "\n")] : []))
		.filter(Boolean)
		.join("\n");
}

/** Warns a person who leaves the page while it alone has what they wrote. */
function useLeaveWarning(draft: Draft | null) {
	useEffect(() => {
		const warn = (e: BeforeUnloadEvent) => draft?.lost() && e.preventDefault();
		addEventListener("beforeunload", warn);
		return () => removeEventListener("beforeunload", warn);
	}, [draft]);
}

/** Takes back what the agent's last run has changed, and keeps what people wrote. */
function UndoEdits({ document, run, onDone }: { document: string; run: string; onDone: () => void }) {
	const { api } = useClient();
	const [busy, setBusy] = useState(false);
	const undo = async () => {
		setBusy(true);
		try {
			const r = await unwrap(api.POST("/api/documents/{id}/runs/{run}/undo", { params: { path: { id: document, run } } }));
			toast({
				text:
					r.undone === 0
						? "Nothing of this run was left to undo. Restore a version in the history instead."
						: `Undone: ${r.undone === 1 ? "one change" : `${r.undone} changes`} of this run. What people wrote is kept.`,
			});
			onDone();
		} catch (e) {
			toast({ text: e instanceof Error ? e.message : String(e) });
			setBusy(false);
		}
	};
	return (
		<Button
			look="quiet"
			small
			icon={HistoryIcon}
			busy={busy}
			title="Takes back what this run changed, and keeps what people wrote"
			onClick={() => void undo()}
		>
			Undo its edits
		</Button>
	);
}

/** The people and agents who have the document open. */
function usePeople({ provider }: DocumentConnection): Person[] {
	const [people, setPeople] = useState<Person[]>([]);
	useEffect(() => {
		const read = () =>
			setPeople(
				[...provider.awareness.getStates()].flatMap(([client, s]) =>
					s.user
						? [
								{
									client,
									name: String(s.user.name),
									member: s.user.run_id ? undefined : String(s.user.member_id ?? s.user.name),
									run: s.user.run_id ? String(s.user.run_id) : undefined,
								},
							]
						: [],
				),
			);
		provider.awareness.on("change", read);
		read();
		return () => provider.awareness.off("change", read);
	}, [provider]);
	return people;
}

/** A caret; its writer's face is in the margin. The colour is set on the element: the policy forbids style attributes. */
function caret(user: Record<string, unknown>): HTMLElement {
	const at = document.createElement("span");
	const agent = Boolean(user.run_id);
	at.className = css.caret ?? "";
	at.style.setProperty("--c", String(user.color ?? "var(--lamp-live)"));
	at.dataset.name = agent ? "Signalbox" : String(user.name ?? "Somebody");
	at.dataset.who = String(user.run_id ?? user.member_id ?? user.name);
	if (!agent) at.dataset.member = String(user.member_id ?? user.name);
	return at;
}

const colourOf = (id: string) => `var(--p-${([...id].reduce((sum, c) => sum + c.charCodeAt(0), 0) % 6) + 1})`;

function Tools({ editor }: { editor: Editor }) {
	const [, setChanged] = useState(0);
	useEffect(() => {
		const again = () => setChanged((n) => n + 1);
		editor.on("transaction", again);
		return () => {
			editor.off("transaction", again);
		};
	}, [editor]);
	const tools: [LucideIcon, string, string | null, () => void][] = [
		[Bold, "Bold", "bold", () => editor.chain().focus().toggleBold().run()],
		[Italic, "Italic", "italic", () => editor.chain().focus().toggleItalic().run()],
		[List, "List", "bulletList", () => editor.chain().focus().toggleBulletList().run()],
		[ListOrdered, "Numbered list", "orderedList", () => editor.chain().focus().toggleOrderedList().run()],
		[ListTodo, "To-do list", "taskList", () => editor.chain().focus().toggleTaskList().run()],
		[Quote, "Quote", "blockquote", () => editor.chain().focus().toggleBlockquote().run()],
		[Undo2, "Undo", null, () => editor.chain().focus().undo().run()],
		[Redo2, "Redo", null, () => editor.chain().focus().redo().run()],
	];
	return (
		<>
			{tools.map(([icon, label, name, run]) => (
				<IconButton key={label} icon={icon} label={label} onClick={run} {...(name ? { "aria-pressed": editor.isActive(name) } : {})} />
			))}
		</>
	);
}

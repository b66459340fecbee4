import type { DocumentConnection, DocumentState } from "@signalbox/client/document";
import { Editor } from "@tiptap/core";
import Collaboration from "@tiptap/extension-collaboration";
import CollaborationCaret from "@tiptap/extension-collaboration-caret";
import { Bold, Italic, List, ListOrdered, ListTodo, type LucideIcon, Quote, Redo2, Undo2 } from "lucide-react";
import { type MouseEvent, useEffect, useRef, useState } from "react";
import { Button, Face, IconButton, Notice, Tag } from "../parts/controls.tsx";
import { useDocument } from "./connection.ts";
import css from "./Document.module.css";
import { schema } from "./schema.ts";

interface Person {
	client: number;
	name: string;
	color: string;
	agent: boolean;
}

const words: Partial<Record<DocumentState, [tone: "wait" | "stop", title: string, text: string]>> = {
	lost: ["wait", "No connection.", "What you write is kept here and merged when the line is back."],
	"signed-out": ["stop", "You are signed out.", "Sign in again to go on; the text stays on this page."],
	"no-member": ["stop", "You left the workspace.", "The text stays on this page."],
	deleted: ["stop", "This document was deleted.", "The text stays on this page; copy what you need."],
	"too-large": ["stop", "The last change is too large.", "It was not stored. Copy it, then reload the page."],
};

/** A document, live: people and agents write in it at the same time. */
export default function Document({ id, me, readOnly }: { id: string; me: { id: string; name: string }; readOnly: boolean }) {
	const { connected, line } = useDocument(id);
	const told = words[line];
	return (
		<div className={css.document}>
			{told && (
				<div role="status">
					<Notice tone={told[0]}>
						<b className="font-bold">{told[1]}</b> {told[2]}
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
					</Notice>
				</div>
			)}
			{readOnly && <Notice tone="plain">You are reading. Viewers cannot type here. You see every change as it happens.</Notice>}
			{connected && (
				<Sheet key={id} connected={connected} line={line} me={me} readOnly={readOnly || (told !== undefined && line !== "lost")} />
			)}
		</div>
	);
}

/** Copies the text of the document that is on the page, also if the server has it no longer. */
function CopyAll() {
	const [copied, setCopied] = useState(false);
	const copy = (e: MouseEvent<HTMLElement>) => {
		const text = e.currentTarget.closest(`.${css.document}`)?.querySelector<HTMLElement>("[role=textbox]")?.innerText ?? "";
		void navigator.clipboard.writeText(text).then(() => setCopied(true));
	};
	return (
		<Button small onClick={copy}>
			{copied ? "Copied" : "Copy all"}
		</Button>
	);
}

function Sheet({
	connected,
	line,
	me,
	readOnly,
}: {
	connected: DocumentConnection;
	line: DocumentState;
	me: { id: string; name: string };
	readOnly: boolean;
}) {
	const place = useRef<HTMLDivElement>(null);
	const [editor, setEditor] = useState<Editor | null>(null);
	const people = usePeople(connected);
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
			],
			editorProps: { attributes: { "aria-label": "Document", role: "textbox", "aria-multiline": "true", class: css.sheet ?? "" } },
		});
		setEditor(made);
		return () => made.destroy();
	}, [connected, me.id, me.name]);
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
				{others.some((p) => p.agent) && <span className="text-small text-ink-3">Signalbox is writing</span>}
				<span className="flex gap-1">
					{others.map((p) => (
						<Face key={p.client} name={p.agent ? "Signalbox, the agent" : p.name} id={p.agent ? undefined : p.name} />
					))}
				</span>
				<Tag tone={line === "live" ? "live" : "plain"}>{line === "live" ? "Live" : line === "connecting" ? "Connecting" : "Offline"}</Tag>
			</div>
			<div className="scroll" ref={place} />
		</>
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
									color: String(s.user.color),
									agent: Boolean(s.user.run_id ?? s.run_id) || s.user.name === "Agent",
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

/** A caret with its writer's name. Colours are set on the element: the policy forbids style attributes. */
function caret(user: Record<string, unknown>): HTMLElement {
	const at = document.createElement("span");
	at.className = css.caret ?? "";
	at.style.setProperty("--c", String(user.color ?? "var(--lamp-live)"));
	const name = document.createElement("span");
	name.textContent = user.name === "Agent" ? "Signalbox" : String(user.name ?? "");
	at.append(name);
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

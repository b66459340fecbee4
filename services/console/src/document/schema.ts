/**
 * The document's schema, which is the server's: an element that is missing here would be deleted
 * from the shared document, for everyone (docs/editor.md).
 */
import Code from "@tiptap/extension-code";
import Highlight from "@tiptap/extension-highlight";
import Image from "@tiptap/extension-image";
import { TaskItem, TaskList } from "@tiptap/extension-list";
import Mention from "@tiptap/extension-mention";
import Subscript from "@tiptap/extension-subscript";
import Superscript from "@tiptap/extension-superscript";
import { TableKit } from "@tiptap/extension-table";
import StarterKit from "@tiptap/starter-kit";

const CombinedCode = Code.extend({ excludes: "code" });

const LinkedImage = Image.extend({
	addAttributes() {
		return { ...this.parent?.(), href: { default: null, parseHTML: (e) => e.closest("a")?.getAttribute("href") ?? null } };
	},
	renderHTML({ HTMLAttributes: { href, ...attributes } }) {
		const safe = /^(https?:|mailto:)/i.test(String(href ?? ""));
		return safe ? ["a", { href, rel: "noopener noreferrer nofollow" }, ["img", attributes]] : ["img", attributes];
	},
});

export const schema = [
	StarterKit.configure({ undoRedo: false, code: false, link: { openOnClick: false } }),
	CombinedCode,
	LinkedImage,
	Highlight,
	Mention,
	Subscript,
	Superscript,
	TableKit,
	TaskItem,
	TaskList,
];

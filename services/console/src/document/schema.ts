/**
 * The document's schema, which is the server's: an element that is missing here would be deleted
 * from the shared document, for everyone (docs/editor.md).
 */
import { mergeAttributes, Node } from "@tiptap/core";
import Code from "@tiptap/extension-code";
import Highlight from "@tiptap/extension-highlight";
import Image from "@tiptap/extension-image";
import { TaskItem, TaskList } from "@tiptap/extension-list";
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

/**
 * The mention as documents store it. TipTap's own brings 11 kB of code that offers names while a person
 * types, and none are offered here.
 */
const Mention = Node.create({
	name: "mention",
	priority: 101, // TipTap's
	group: "inline",
	inline: true,
	selectable: false,
	atom: true,
	addAttributes() {
		const attribute = (name: string, key: string, standard: string | null) => ({
			default: standard,
			parseHTML: (e: HTMLElement) => e.getAttribute(name),
			renderHTML: (of: Record<string, unknown>) => (of[key] ? { [name]: of[key] } : {}),
		});
		return {
			id: attribute("data-id", "id", null),
			label: attribute("data-label", "label", null),
			mentionSuggestionChar: attribute("data-mention-suggestion-char", "mentionSuggestionChar", "@"),
		};
	},
	parseHTML: () => [{ tag: 'span[data-type="mention"]' }],
	renderHTML: ({ node, HTMLAttributes }) => ["span", mergeAttributes({ "data-type": "mention" }, HTMLAttributes), mentioned(node.attrs)],
	renderText: ({ node }) => mentioned(node.attrs),
});

const mentioned = ({ mentionSuggestionChar: sign, label, id }: Record<string, unknown>) => `${sign ?? "@"}${label ?? id}`;

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

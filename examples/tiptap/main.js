// A document that people and agents write in at the same time. Open the address in two windows, or
// ask an agent to append to the document.
import { createClient } from "@signalbox/client";
import { connectDocument } from "@signalbox/client/document";
import { Editor } from "@tiptap/core";
import Code from "@tiptap/extension-code";
import Collaboration from "@tiptap/extension-collaboration";
import Highlight from "@tiptap/extension-highlight";
import Image from "@tiptap/extension-image";
import { TaskItem, TaskList } from "@tiptap/extension-list";
import Mention from "@tiptap/extension-mention";
import Subscript from "@tiptap/extension-subscript";
import Superscript from "@tiptap/extension-superscript";
import { TableKit } from "@tiptap/extension-table";
import StarterKit from "@tiptap/starter-kit";

const { url, token, workspace } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const client = createClient({ url, token, workspace });

// The page's address names the document; without one, make one.
const here = new URL(location.href);
let id = here.searchParams.get("document");
if (!id) {
	const { data, error, response } = await client.api.POST("/api/documents", { body: { name: "From an example", content: "" } });
	if (!data) throw new Error(`${response.status}: ${error.error}`);
	id = data.document.id;
	here.searchParams.set("document", id);
	history.replaceState(null, "", here);
}
document.getElementById("id").value = id;

const { doc } = connectDocument(id, {
	url,
	token,
	workspace,
	onState: (state) => {
		document.getElementById("state").value = state;
	},
});

// All of these are needed: an editor deletes, for everyone, what its schema does not have (docs/editor.md).
const LinkedImage = Image.extend({
	addAttributes() {
		return { ...this.parent?.(), href: { default: null, parseHTML: (e) => e.closest("a")?.getAttribute("href") ?? null } };
	},
	renderHTML({ HTMLAttributes: { href, ...attributes } }) {
		const image = ["img", attributes];
		return /^(https?:|mailto:)/i.test(href ?? "") ? ["a", { href, rel: "noopener noreferrer nofollow" }, image] : image;
	},
});
new Editor({
	element: document.getElementById("editor"),
	extensions: [
		StarterKit.configure({ undoRedo: false, code: false }), // Collaboration undoes one's own changes only
		Code.extend({ excludes: "code" }),
		LinkedImage,
		Highlight,
		Mention,
		Subscript,
		Superscript,
		TableKit,
		TaskItem,
		TaskList,
		Collaboration.configure({ document: doc }),
	],
});

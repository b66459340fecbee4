/**
 * Text that came from the server, not from a person's editor: what the agent has just written. It is
 * tinted until it has been seen for a while.
 */
import { Extension } from "@tiptap/core";
import type { Node } from "@tiptap/pm/model";
import { Plugin, PluginKey } from "@tiptap/pm/state";
import { Decoration, DecorationSet } from "@tiptap/pm/view";
import { ySyncPluginKey } from "@tiptap/y-tiptap";
import type { WebsocketProvider } from "y-websocket";
import type * as Y from "yjs";

interface Range {
	from: number;
	to: number;
}

/** How long fresh text stays tinted on a page that is visible. */
const seenAfter = 8_000;
const most = 200;

const key = new PluginKey<Range[]>("fresh");

export interface FreshOptions {
	doc: Y.Doc | null;
	provider: WebsocketProvider | null;
	look: string;
	/** Called when text has come from the server. */
	onFresh: () => void;
}

export const Fresh = Extension.create<FreshOptions>({
	name: "fresh",
	addOptions: () => ({ doc: null, provider: null, look: "", onFresh: () => undefined }),
	addProseMirrorPlugins() {
		const { doc, provider, look, onFresh } = this.options;
		if (!doc || !provider) return [];
		// Whether the Yjs transaction that the editor is about to show has text that no connected editor wrote.
		let served = false;
		const observe = (t: Y.Transaction) => {
			served = !t.local && provider.synced && [...t.afterState].some(([c, n]) => n > (t.beforeState.get(c) ?? 0) && !isPerson(provider, c));
		};
		return [
			new Plugin<Range[]>({
				key,
				state: {
					init: () => [],
					apply(tr, ranges, before, after) {
						if (tr.getMeta(key) === "seen") return [];
						if (!tr.docChanged) return ranges;
						if (!tr.getMeta(ySyncPluginKey)?.isChangeOrigin)
							return ranges.map(({ from, to }) => ({ from: tr.mapping.map(from), to: tr.mapping.map(to) })).filter((r) => r.to > r.from);
						// The editor replaces the whole document: what has changed is found by comparison.
						const changes = changesOf(before.doc, after.doc);
						const moved = ranges.map((r) => ({ from: mapped(r.from, changes, "from"), to: mapped(r.to, changes, "to") }));
						return [...moved, ...(served ? changes : [])].filter((r) => r.to > r.from).slice(-most);
					},
				},
				props: {
					decorations: (state) =>
						DecorationSet.create(
							state.doc,
							(key.getState(state) ?? []).map((r) => Decoration.inline(r.from, r.to, { class: look })),
						),
				},
				view(view) {
					doc.on("beforeObserverCalls", observe);
					let timer: ReturnType<typeof setTimeout> | undefined;
					const seen = () => {
						timer = undefined;
						if (key.getState(view.state)?.length) view.dispatch(view.state.tr.setMeta(key, "seen"));
					};
					const wait = () => {
						clearTimeout(timer);
						timer = document.hidden || !key.getState(view.state)?.length ? undefined : setTimeout(seen, seenAfter);
					};
					document.addEventListener("visibilitychange", wait);
					return {
						update(_, before) {
							const [now, old] = [key.getState(view.state) ?? [], key.getState(before) ?? []];
							if (now === old) return;
							if (served && now.length > 0) onFresh();
							wait();
						},
						destroy() {
							clearTimeout(timer);
							document.removeEventListener("visibilitychange", wait);
							doc.off("beforeObserverCalls", observe);
						},
					};
				},
			}),
		];
	},
});

/** Reports whether a Yjs client is a person's editor that is connected, rather than the server. */
function isPerson(provider: WebsocketProvider, client: number): boolean {
	const user = provider.awareness.getStates().get(client)?.user;
	return client === provider.doc.clientID || (user !== undefined && !user.run_id);
}

/** A difference of two documents: from and to in the new one, and where that was in the old one. */
interface Change extends Range {
	old: Range;
}

/** Where two documents differ, in their order: within the lines that changed, and whole lines that came or went. */
export function changesOf(before: Node, after: Node): Change[] {
	const changes: Change[] = [];
	const walk = (a: Node, b: Node, atA: number, atB: number) => {
		if (a.inlineContent || b.inlineContent || a.childCount !== b.childCount) {
			const from = a.content.findDiffStart(b.content);
			const end = a.content.findDiffEnd(b.content);
			if (from === null || !end) return;
			// Both ends may have found the same text, if it is repeated.
			const overlap = Math.max(0, from - Math.min(end.a, end.b));
			changes.push({ from: atB + from, to: atB + end.b + overlap, old: { from: atA + from, to: atA + end.a + overlap } });
			return;
		}
		for (let i = 0; i < a.childCount; i++) {
			const [x, y] = [a.child(i), b.child(i)];
			if (x.eq(y)) {
				// unchanged
			} else if (x.sameMarkup(y) && !x.isLeaf) walk(x, y, atA + 1, atB + 1);
			else changes.push({ from: atB, to: atB + y.nodeSize, old: { from: atA, to: atA + x.nodeSize } });
			atA += x.nodeSize;
			atB += y.nodeSize;
		}
	};
	walk(before, after, 0, 0);
	return changes;
}

/** Where a position of the old document is in the new one; within a change, its beginning or its end. */
function mapped(at: number, changes: readonly Change[], end: "from" | "to"): number {
	let moved = 0;
	for (const c of changes) {
		if (at <= c.old.from) break;
		if (at < c.old.to) return c[end];
		moved = c.to - c.old.to;
	}
	return at + moved;
}

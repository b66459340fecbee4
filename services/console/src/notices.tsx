import type { Schemas } from "@signalbox/client";
import { useEffect, useRef, useState } from "react";
import { Dialog } from "./parts/Dialog.tsx";
import { storage } from "./storage.ts";

/** What the browser may tell a person who looks at something else. Both are off until somebody turns them on. */
const kinds = {
	waits: "When an agent waits for an answer",
	ends: "When a run ends",
} as const;
type Kind = keyof typeof kinds;

export const noticeOn = (k: Kind): boolean =>
	"Notification" in globalThis && Notification.permission === "granted" && storage.get(`notice:${k}`) === "on";

/** Keeps the number of waiting calls in the tab's title and icon; "" for none. */
export function useCount(n: string): void {
	useEffect(() => {
		const title = document.querySelector("title");
		const icon = document.querySelector<HTMLLinkElement>("link[rel=icon]");
		if (!title) return;
		const show = () => {
			const bare = document.title.replace(/^\(\d+\+?\) /, "");
			const wanted = n ? `(${n}) ${bare}` : bare;
			if (document.title !== wanted) document.title = wanted;
		};
		show();
		if (icon) icon.href = n ? "/mark-waiting.svg" : "/mark.svg";
		// Every page sets its own title.
		const pages = new MutationObserver(show);
		pages.observe(title, { childList: true });
		return () => pages.disconnect();
	}, [n]);
}

/** Tells of what happens while the page is hidden. */
export function useNotices(sessions: readonly Schemas["Session"][] | undefined): void {
	const before = useRef(new Map<string, string>());
	useEffect(() => {
		if (!sessions) return;
		for (const s of sessions) {
			const was = before.current.get(s.id);
			const what: Kind | undefined =
				was === "running" && s.state === "waiting"
					? "waits"
					: (was === "running" || was === "waiting") && s.state === "idle"
						? "ends"
						: undefined;
			if (what && document.hidden && noticeOn(what))
				new Notification(s.title ?? "Signalbox", { body: what === "waits" ? "Waits for an answer." : "The run has ended.", tag: s.id });
			before.current.set(s.id, s.state);
		}
	}, [sessions]);
}

/** The dialog with the switches. */
export function Notices({ onClose }: { onClose: () => void }) {
	const [, again] = useState(0);
	const blocked = !("Notification" in globalThis) || Notification.permission === "denied";
	const set = async (k: Kind, on: boolean) => {
		if (on && (await Notification.requestPermission()) !== "granted") on = false;
		storage.set(`notice:${k}`, on ? "on" : "off");
		again((n) => n + 1);
	};
	return (
		<Dialog title="Notifications" light width={440} onClose={onClose}>
			<p className="text-ink-2">The browser tells you of these while you look at something else. Inbox and tab count them in any case.</p>
			{(Object.keys(kinds) as Kind[]).map((k) => (
				<label key={k} className="flex items-center gap-2">
					<input type="checkbox" checked={noticeOn(k)} disabled={blocked} onChange={(e) => void set(k, e.target.checked)} />
					{kinds[k]}
				</label>
			))}
			{blocked && (
				<p className="text-small text-wait">This browser does not let Signalbox notify you. Allow it in the settings of the page.</p>
			)}
		</Dialog>
	);
}

import type { Schemas } from "@signalbox/client";
import { useEffect, useRef } from "react";
import { storage } from "./storage.ts";

/** What the browser may tell a person who looks at something else. Both are off until somebody turns them on. */
export const kinds = {
	waits: "When an agent waits for an answer",
	ends: "When a run ends",
} as const;
export type Kind = keyof typeof kinds;

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

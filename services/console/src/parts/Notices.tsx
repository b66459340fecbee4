import { useState } from "react";
import { type Kind, kinds, noticeOn } from "../notices.tsx";
import { storage } from "../storage.ts";
import { Dialog } from "./Dialog.tsx";

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

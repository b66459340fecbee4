import type { Schemas } from "@signalbox/client";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link as LinkIcon, Trash2 } from "lucide-react";
import { useState } from "react";
import { unwrap, useWorkspace } from "../client.ts";
import { CopyButton } from "../parts/CopyButton.tsx";
import { Button, Icon, IconButton, Notice } from "../parts/controls.tsx";
import { Dialog } from "../parts/Dialog.tsx";
import { Field, pageCss, Refused } from "../parts/page.tsx";
import { usePeople } from "../people.ts";
import { ago } from "../words.ts";
import css from "./Share.module.css";

/** The links with which people without an account read a document. */
export function Share({ id, onClose }: { id: string; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const { nameOf } = usePeople();
	const [days, setDays] = useState("7");
	const [made, setMade] = useState<{ share: string; address: string }>();
	const [busy, setBusy] = useState("");
	const [error, setError] = useState<Error | null>(null);
	const key = [workspace.id, "shares", id];
	const links = useQuery({
		queryKey: key,
		queryFn: () =>
			unwrap(client.api.GET("/api/documents/{id}/shares", { params: { path: { id } } })).then((b) => b.shares as Schemas["Share"][]),
	});
	const act = async (what: string, run: () => Promise<void>) => {
		setBusy(what);
		setError(null);
		try {
			await run();
			await queries.invalidateQueries({ queryKey: key });
		} catch (e) {
			setError(e instanceof Error ? e : new Error(String(e)));
		}
		setBusy("");
	};
	const create = () =>
		act("create", async () => {
			const b = await unwrap(
				client.api.POST("/api/documents/{id}/shares", {
					params: { path: { id } },
					body: days ? { expires_in_days: Number(days) } : {},
				}),
			);
			setMade({ share: b.share.id, address: location.origin + b.path });
		});
	const revoke = (share: string) =>
		act(share, async () => {
			await unwrap(client.api.DELETE("/api/documents/{id}/shares/{share}", { params: { path: { id, share } } }));
			if (made?.share === share) setMade(undefined);
		});
	return (
		<Dialog title="Share by link" onClose={onClose} footer={<Button onClick={onClose}>Done</Button>}>
			<p className="text-ink-2">
				Whoever has the link reads this document as it changes, without its history and without the conversation.
			</p>
			<div className={css.make}>
				<Field label="It works">
					{(control) => (
						<select {...control} value={days} onChange={(e) => setDays(e.target.value)}>
							<option value="1">for a day</option>
							<option value="7">for a week</option>
							<option value="30">for 30 days</option>
							<option value="">until it is revoked</option>
						</select>
					)}
				</Field>
				<Button look="primary" icon={LinkIcon} busy={busy === "create"} disabled={busy !== ""} onClick={() => void create()}>
					Create link
				</Button>
			</div>
			<Refused error={error ?? links.error} />
			{made && (
				<div role="status">
					<Notice tone="live">
						<b className="font-bold">Copy this link now.</b> It is stored as a hash and cannot be shown again.
						<div className={`${pageCss.secret} mt-2`}>
							<code>{made.address}</code>
							<CopyButton text={made.address} look="primary" />
						</div>
					</Notice>
				</div>
			)}
			{links.data && links.data.length > 0 && (
				<ul className={css.links} aria-label="Links">
					{links.data.map((l) => (
						<li key={l.id}>
							<Icon of={LinkIcon} />
							<span className="min-w-0 flex-1">
								<span className="font-mid">
									{l.id === made?.share ? "The new link" : `By ${nameOf(l.created_by).replace("You", "you")}`}
								</span>
								<span className="block text-small text-ink-3">
									{l.expires_at
										? `until ${new Date(l.expires_at).toLocaleDateString(undefined, { day: "numeric", month: "long" })}`
										: "until it is revoked"}
									{" · created "}
									{ago(l.created_at)}
								</span>
							</span>
							<IconButton
								icon={Trash2}
								label="Revoke: pages that show it end"
								busy={busy === l.id}
								disabled={busy !== ""}
								onClick={() => void revoke(l.id)}
							/>
						</li>
					))}
				</ul>
			)}
		</Dialog>
	);
}

import { createClient, type Schemas, SignalboxError } from "@signalbox/client";
import { useEffect, useState } from "react";
import { Blank, Tag } from "../parts/controls.tsx";
import { Markdown } from "../parts/Markdown.tsx";
import { Mark } from "../parts/Signal.tsx";
import { ago } from "../words.ts";
import css from "./shared.module.css";

/** A document that somebody has shared by a link, as it changes. Its reader need not be signed in. */
export function SharedPage({ share }: { share: string }) {
	const [shown, setShown] = useState<Schemas["SharedDocumentEvent"]>();
	const [open, setOpen] = useState(true);
	const [error, setError] = useState<SignalboxError>();
	useEffect(() => {
		const ended = new AbortController();
		const watch = async () => {
			const { sharedDocument } = createClient({ token: share });
			for await (const d of sharedDocument({ signal: ended.signal, onConnection: (c) => setOpen(c.state === "open") })) setShown(d);
		};
		watch().catch((e: unknown) => setError(e instanceof SignalboxError ? e : new SignalboxError(String(e), 0)));
		return () => ended.abort();
	}, [share]);
	const title = error ? "Not here" : (shown?.name ?? "Document");
	useEffect(() => {
		document.title = `${title} · Signalbox`;
	}, [title]);
	if (error)
		return (
			<main className={css.page}>
				<Blank heading="h1" line="broken" title="Not here">
					{error.status === 404
						? "This link does not work: it was revoked, has expired, or never existed. We do not say which. Ask whoever sent it for a new one."
						: error.message}
				</Blank>
			</main>
		);
	return (
		<main className={css.page}>
			<header className={css.top}>
				<Mark />
				<h1 className="cut flex-1 font-mid">{shown?.name ?? "Document"}</h1>
				{shown && (
					<>
						<time className="n text-small text-ink-3" dateTime={shown.updated_at} title={new Date(shown.updated_at).toLocaleString()}>
							Changed {ago(shown.updated_at)}
						</time>
						<span role="status">
							<Tag tone={open ? "live" : "plain"}>{open ? "Live" : "Offline"}</Tag>
						</span>
					</>
				)}
			</header>
			<div className="scroll" tabIndex={0} role="region" aria-label="Document">
				<article className={css.sheet}>
					{shown && <Markdown text={shown.content} />}
					{shown && !shown.content.trim() && <p className="text-ink-3">This document has no text yet. It appears here as it is written.</p>}
				</article>
			</div>
		</main>
	);
}

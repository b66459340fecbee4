import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import type { File as Attached } from "../live/conversation.ts";
import { contentFor } from "../live/files.ts";
import { Composer, drafts } from "../parts/Composer.tsx";
import { type ModelChoice, ModelMenu, PresetMenu, useSuggest } from "../parts/choices.tsx";
import { Notice } from "../parts/controls.tsx";
import css from "./new.module.css";

/** What to try first. */
export const examples: [text: string, about: string][] = [
	["Create a document about tea", "A page that you can edit while it is written"],
	["What time is it in Tokyo?", "A tool, and its answer"],
	["Think about rivers", "See the reasoning, or leave it shut"],
	["Count to 100", "And stop it half way"],
	["What is on my calendar this week?", "Reads your calendar; asks before it changes anything"],
	["Simulate an overload", "What a failing provider looks like"],
];

/** Begins a session with its first message, and goes there. If it fails, the message is kept as a draft. */
export function useBegin() {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const navigate = useNavigate();
	const [error, setError] = useState("");
	const [busy, setBusy] = useState(false);
	const begin = async (text: string, choice: Partial<ModelChoice> & { preset?: string } = {}, files: readonly Attached[] = []) => {
		setBusy(true);
		setError("");
		try {
			const made = await unwrap(client.api.POST("/api/sessions", { body: choice }));
			const { id } = made.session;
			await unwrap(
				client.api.POST("/api/sessions/{id}/messages", {
					params: { path: { id }, header: { Prefer: "respond-async" } },
					body: { content: contentFor(text, files), timezone: Intl.DateTimeFormat().resolvedOptions().timeZone },
				}),
			);
			void queries.invalidateQueries({ queryKey: [workspace.id, "sessions"] });
			await navigate({ to: "/w/$slug/s/$id", params: { slug: slugOf(workspace), id } });
		} catch (e) {
			drafts.set("new", text, files);
			setError(e instanceof Error ? e.message : String(e));
			setBusy(false);
		}
	};
	return { begin, busy, error };
}

/** A new session, which begins with the first message. */
export function NewPage() {
	const { workspace } = useWorkspace();
	const [preset, setPreset] = useState("");
	const [model, setModel] = useState<ModelChoice>();
	const suggest = useSuggest(setPreset);
	const choice = { ...(preset ? { preset } : {}), ...model };
	const { begin, busy, error } = useBegin();
	if (workspace.role === "viewer")
		return <p className="page">You are reading. Viewers see sessions and documents as they happen, and start none.</p>;
	return (
		<div className="scroll">
			<div className={css.page}>
				<h1 className="text-h1 font-bold">What should be on the page?</h1>
				<Composer
					draft="new"
					running={false}
					autoFocus
					placeholder="Ask, or say what to write. Paste pictures, drop files, @ mentions a document."
					{...(busy ? { blocked: "Starting…" } : {})}
					onSend={(text, _, files) => void begin(text, choice, files)}
					suggest={suggest}
					tools={
						<>
							<PresetMenu value={preset} onChoose={setPreset} />
							<ModelMenu value={model} onChoose={setModel} />
						</>
					}
				/>
				{error && (
					<div className="px-5" role="alert">
						<Notice tone="stop">
							<b className="font-bold">Not started.</b> {error} What you wrote is kept.
						</Notice>
					</div>
				)}
				<section className={css.try}>
					<h2 className="micro">Try these</h2>
					<div>
						{examples.map(([text, about]) => (
							<button key={text} type="button" onClick={() => void begin(text, choice)} disabled={busy}>
								<b>{text}</b>
								<span>{about}</span>
							</button>
						))}
					</div>
				</section>
			</div>
		</div>
	);
}

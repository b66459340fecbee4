import { type Schemas, SignalboxError } from "@signalbox/client";
import { useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { ArrowDown, Check, ChevronLeft, CornerUpRight, FileText, Pencil, Square, SquareArrowOutUpRight, X } from "lucide-react";
import { type CSSProperties, type ReactNode, Suspense, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useActions } from "../actions.ts";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { useDocumentName } from "../document/name.ts";
import { DocumentPane } from "../document/Pane.tsx";
import { newKey } from "../insecure.ts";
import { decide, giveAnswer, isAnswered, questionId, takeBackAnswer, useAnswers } from "../live/answers.ts";
import { type File as Attached, type Conversation, questionsOf, type Said, type View } from "../live/conversation.ts";
import { contentFor, uploading } from "../live/files.ts";
import { useLine } from "../live/line.ts";
import { type Unsent, unsent } from "../live/unsent.ts";
import { useConversation, useEarlier, useQueue, useView } from "../live/useConversation.ts";
import { Composer, drafts, type Mode } from "../parts/Composer.tsx";
import { ModelMenu, ToolsMenu, useSuggest } from "../parts/choices.tsx";
import { Button, Icon, IconButton, Segments } from "../parts/controls.tsx";
import { Divider, useSplit } from "../parts/Divider.tsx";
import { Lines } from "../parts/Lines.tsx";
import { later } from "../parts/later.tsx";
import { Signal } from "../parts/Signal.tsx";
import { Strip } from "../parts/Strip.tsx";
import { toast } from "../parts/Toast.tsx";
import { type Deeds, DeedsContext } from "../parts/Turn.tsx";
import { usePeople } from "../people.ts";
import { Failed } from "./failed.tsx";
import css from "./session.module.css";

/** Fetched when the conversation is there. */
const Announcer = later(
	() => import("../parts/Announcer.tsx").then((m) => m.Announcer),
	() => null,
);

/** A conversation, live. */
export function SessionPage({ id, doc }: { id: string; doc?: string }) {
	const loaded = useConversation(id);
	if (loaded.state === "loading") return <Loading />;
	if (loaded.state === "failed") return <Failed error={loaded.error} />;
	return <Beside id={id} conversation={loaded.conversation} {...(doc === undefined ? {} : { doc })} />;
}

/** Names the draft of an edit. */
const draftOf = (session: string, said: Said) => `${session}/${said.key}`;

const complain = (e: unknown) => toast({ text: e instanceof Error ? e.message : String(e) });

/** In the address, for a document that the person has closed. */
const closed = "none";

/** The conversation, with the document beside it: the one in the address, or the one that was worked on last. */
function Beside({ id, conversation, doc }: { id: string; conversation: Conversation; doc?: string }) {
	const { workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const view = useView(conversation);
	const worked = lastDocument(view);
	const shown = doc === closed ? undefined : (doc ?? worked);
	const to = { to: "/w/$slug/s/$id", params: { slug, id } } as const;
	const navigate = useNavigate();
	const [page, setPage] = useState<"conversation" | "document">("conversation");
	const pane = useRef<HTMLElement>(null);
	const last = doc === closed ? worked : undefined;
	const ask = () => {
		const selection = getSelection();
		const text = selection?.toString().trim().slice(0, 4000);
		if (!text || !pane.current?.contains(selection?.anchorNode ?? null)) return;
		setPage("conversation");
		drafts.set(id, `${text.replaceAll(/^/gm, "> ")}\n\n${drafts.read(id)}`);
	};
	useActions([
		...(shown || last
			? [
					{
						name: shown ? "Hide the document" : "Show the document",
						keys: "mod+\\",
						run: () => void navigate({ ...to, search: shown ? { doc: closed } : {}, replace: true }),
					},
				]
			: []),
		...(shown && workspace.role !== "viewer" ? [{ keys: "mod+j", run: ask }] : []),
	]);
	/** On a phone one of the two is shown. */
	const pages = shown && (
		<div className={css.pages}>
			<Segments
				label="Show"
				value={page}
				onChange={setPage}
				options={[
					{ value: "conversation", text: "Conversation" },
					{ value: "document", text: "Document" },
				]}
			/>
		</div>
	);
	const [split, setSplit] = useSplit();
	return (
		<div
			className={css.beside}
			data-document={shown ? true : undefined}
			data-page={shown ? page : undefined}
			data-split={split === undefined ? undefined : true}
			style={{ "--split": `${split}%` } as CSSProperties}
		>
			<Ready id={id} conversation={conversation} pages={pages} />
			{shown && <Divider label="Width of the conversation" share={split} onMove={setSplit} />}
			{shown && (
				<aside ref={pane} className={css.pane} aria-label="Document">
					{pages}
					<header className={css.top}>
						<Icon of={FileText} />
						<DocumentName id={shown} />
						<Link
							to="/w/$slug/d/$id"
							params={{ slug, id: shown }}
							aria-label="Open the document by itself"
							title="Open the document by itself"
						>
							<Icon of={SquareArrowOutUpRight} />
						</Link>
						<Link {...to} search={{ doc: closed }} replace aria-label="Close the document" title="Close the document">
							<Icon of={X} />
						</Link>
					</header>
					<DocumentPane key={shown} id={shown} />
				</aside>
			)}
		</div>
	);
}

function DocumentName({ id }: { id: string }) {
	return <h2 className="cut flex-1 font-mid">{useDocumentName(id).data ?? "Document"}</h2>;
}

/**
 * The id of the document that the agent worked on last, and that is still there. One that is only
 * found because the reader has loaded earlier messages does not open.
 */
function lastDocument({ lines, prepended }: View): string | undefined {
	const deleted = new Set<unknown>();
	for (let i = lines.length - 1; i >= prepended; i--) {
		const l = lines[i];
		if (l?.kind !== "step") continue;
		for (const c of [...l.calls].reverse()) {
			if (!c.tool.startsWith("doc_") || c.state !== "done") continue;
			const found = idOf(c.result) ?? idOf(c.args);
			if (c.tool === "doc_delete") deleted.add(found);
			else if (found && !deleted.has(found)) return found;
		}
	}
	return undefined;
}

function idOf(v: unknown): string | undefined {
	const found = typeof v === "object" && v !== null && "id" in v ? v.id : undefined;
	return typeof found === "string" ? found : undefined;
}

function Loading() {
	return (
		<div className={css.loading} role="status" aria-label="Loading the session">
			{[60, 85, 40, 72].map((w) => (
				<i key={w} style={{ width: `${w}%` }} />
			))}
		</div>
	);
}

function Ready({ id, conversation, pages }: { id: string; conversation: Conversation; pages: ReactNode }) {
	const { client, workspace } = useWorkspace();
	const view = useView(conversation);
	useQueue(id, conversation);
	const queries = useQueryClient();
	const { me = view.session.created_by, nameOf } = usePeople();
	const title = view.session.title ?? "New session";
	useEffect(() => {
		document.title = `${title} · Signalbox`;
	}, [title]);

	const deliver = useCallback(
		async (u: Unsent, files: readonly Attached[]) => {
			// It is kept before it is sent: a page that closes meanwhile sends it again, with the same key.
			if (files.length === 0) unsent.keep(id, u);
			try {
				const { run, message_id } = (await unwrap(
					client.api.POST("/api/sessions/{id}/messages", {
						params: { path: { id }, header: { Prefer: "respond-async", "Idempotency-Key": u.key } },
						body: { content: contentFor(u.text, files), mode: u.mode, timezone: Intl.DateTimeFormat().resolvedOptions().timeZone },
						...(files.length > 0 ? { fetch: uploading(workspace.id, (progress) => conversation.delivers(u.key, { progress })) } : {}),
					}),
				)) as { run: Schemas["Run"]; message_id?: string };
				unsent.forget(id, u.key);
				// A gateway that is not upgraded yet does not name the message.
				conversation.sent(u.key, { messageId: message_id ?? run.user_message_id, run: run.id });
				void queries.invalidateQueries({ queryKey: [workspace.id, "sessions"] });
			} catch (e) {
				if (files.length === 0 && e instanceof SignalboxError && e.status === 0) {
					conversation.delivers(u.key, { state: "unsent" });
					return;
				}
				unsent.forget(id, u.key);
				if (e instanceof SignalboxError && e.status === 401) {
					// Not sent later by itself: somebody else may sign in here.
					conversation.forget(u.key);
					drafts.set(id, [u.text, drafts.read(id)].filter(Boolean).join("\n\n"), files);
					return;
				}
				conversation.sent(u.key, { error: e instanceof Error ? e.message : String(e) });
			}
		},
		[client, conversation, id, queries, workspace.id],
	);
	const send = useCallback(
		(text: string, mode: Mode, files: readonly Attached[] = []) => {
			const u = { key: newKey(), text, mode, at: new Date().toISOString() };
			conversation.sending({ kind: "said", key: u.key, text, files: [...files], by: me, at: u.at, run: null, state: "sending" });
			void deliver(u, files);
		},
		[conversation, deliver, me],
	);
	const sendText = useCallback((text: string) => send(text, "queue"), [send]);
	// What was kept is sent when the page opens, and when the line is back.
	const open = useLine().state === "open";
	// biome-ignore lint/correctness/useExhaustiveDependencies: only when the line changes
	useEffect(() => {
		if (!open) return;
		const sendKept = () => {
			const shown = conversation.view();
			for (const u of unsent.read(id)) {
				const said = [...shown.lines, ...shown.queue].find((l) => l.key === u.key);
				if (said?.kind === "said" && said.state === "sending") continue;
				if (said) conversation.delivers(u.key, { state: "sending" });
				else conversation.sending({ kind: "said", key: u.key, text: u.text, files: [], by: me, at: u.at, run: null, state: "sending" });
				void deliver(u, []);
			}
		};
		sendKept();
		const again = setInterval(sendKept, 10_000);
		addEventListener("online", sendKept);
		return () => {
			clearInterval(again);
			removeEventListener("online", sendKept);
		};
	}, [open, deliver]);
	/** Changes the session; false if that was refused. */
	const change = useCallback(
		async (body: Schemas["UpdateSession"]): Promise<boolean> => {
			try {
				const answer = await unwrap(client.api.PATCH("/api/sessions/{id}", { params: { path: { id } }, body }));
				conversation.renamed(answer.session);
				return true;
			} catch (e) {
				complain(e);
				return false;
			}
		},
		[client, conversation, id],
	);
	/** Takes a message back that waits; false if it is answered already. */
	const takeBack = async (said: Said): Promise<boolean> => {
		try {
			await unwrap(client.api.DELETE("/api/sessions/{id}/messages/{message_id}", { params: { path: { id, message_id: said.key } } }));
			conversation.forget(said.key);
			return true;
		} catch (e) {
			complain(e);
			return false;
		}
	};
	/** Moves a message that waits to the end of the queue, or to the run. */
	const move = async (said: Said, mode: Mode) => {
		try {
			const { run } = await unwrap(
				client.api.PATCH("/api/sessions/{id}/messages/{message_id}", { params: { path: { id, message_id: said.key } }, body: { mode } }),
			);
			conversation.moved(said, run.id);
		} catch (e) {
			complain(e);
		}
	};
	/** Puts a message that waits, or was refused, into the composer, before what stands there. */
	const rewrite = async (said: Said) => {
		const before = drafts.read(id);
		const both = [said.text, before].filter(Boolean).join("\n\n");
		drafts.set(id, both, said.files); // first, so that a page that closes now loses nothing
		if (said.state === "failed") conversation.forget(said.key);
		else if (!(await takeBack(said)) && drafts.read(id) === both) drafts.set(id, before);
	};
	// The frame counts what runs.
	const run = view.active?.run;
	// biome-ignore lint/correctness/useExhaustiveDependencies: when a run begins or ends
	useEffect(() => {
		void queries.invalidateQueries({ queryKey: [workspace.id, "sessions"] });
	}, [run]);
	const suggest = useSuggest();
	const earlier = useEarlier(id, conversation);
	const stop = async () => {
		if (!view.active) return;
		const { run } = view.active;
		conversation.stopping(run, true);
		try {
			await unwrap(client.api.POST("/api/sessions/{id}/cancel", { params: { path: { id } }, body: {} }));
		} catch (e) {
			conversation.stopping(run, false);
			toast({ text: `The run was not stopped. ${e instanceof Error ? e.message : e}` });
		}
	};
	const onStop = workspace.role === "viewer" ? undefined : () => void stop();
	useActions(view.active && onStop ? [{ name: `Stop the run of “${title}”`, keys: "mod+.", icon: Square, run: onStop }] : []);
	const [editing, setEditing] = useState<Said>();
	const endEdit = () => {
		if (editing) drafts.write(draftOf(id, editing), "");
		setEditing(undefined);
	};
	const edit = useCallback(
		(said: Said) => {
			if (!drafts.read(draftOf(id, said))) drafts.write(draftOf(id, said), said.text);
			setEditing(said);
		},
		[id],
	);
	const resend = async (said: Said, text: string, files: readonly Attached[]) => {
		setEditing(undefined);
		try {
			await unwrap(
				client.api.POST("/api/sessions/{id}/messages", {
					params: { path: { id }, header: { Prefer: "respond-async", "Idempotency-Key": newKey() } },
					body: { content: contentFor(text, files), edit_of: said.key, timezone: Intl.DateTimeFormat().resolvedOptions().timeZone },
				}),
			);
		} catch (e) {
			drafts.write(draftOf(id, said), text);
			setEditing({ ...said, files: [...files] });
			complain(e);
		}
	};
	const navigate = useNavigate();
	const busy = view.active !== null;
	const { session } = view;
	const deeds = useMemo<Deeds>(() => {
		const params = { path: { id } };
		return {
			busy,
			edit,
			send: sendText,
			again: (message) =>
				void unwrap(
					client.api.POST("/api/sessions/{id}/regenerate", {
						params: { ...params, header: { Prefer: "respond-async", "Idempotency-Key": newKey() } },
						body: { message_id: message },
					}),
				).catch(complain),
			show: (message) => void unwrap(client.api.PUT("/api/sessions/{id}/leaf", { params, body: { message_id: message } })).catch(complain),
			fork: (message) =>
				void unwrap(client.api.POST("/api/sessions/{id}/fork", { params, body: { message_id: message } }))
					.then(({ session }) => {
						void queries.invalidateQueries({ queryKey: [workspace.id, "sessions"] });
						return navigate({ to: "/w/$slug/s/$id", params: { slug: slugOf(workspace), id: session.id } });
					})
					.catch(complain),
			goOnWith: async (model) => {
				const changed = await change(model);
				if (changed) sendText("Go on.");
				return changed;
			},
			session,
		};
	}, [busy, change, client, edit, id, navigate, queries, sendText, session, workspace]);
	const given = useAnswers();
	const questions = questionsOf(view).filter((q) => !isAnswered(given.get(questionId(q))));
	// What may have happened cannot be refused.
	const refusable = questions.filter((q) => !q.ask.outcomeUnknown);
	const refused = useRef<{ questions: readonly string[]; reason: string }>(undefined);
	const refuse = (reason: string) => {
		refused.current = { questions: refusable.map(questionId), reason };
		for (const q of refusable)
			giveAnswer(
				questionId(q),
				{ approved: false, reason },
				(answer) => decide(client, id, q, answer),
				(e) => {
					complain(e); // its card may not be on the page
					drafts.giveBack(id, reason);
				},
			);
	};
	const takeBackRefusal = (): boolean => {
		const { questions = [], reason = "" } = refused.current ?? {};
		if (questions.filter(takeBackAnswer).length === 0) return false;
		drafts.giveBack(id, reason);
		return true;
	};
	const recall = () => {
		const waits = view.queue.findLast((q) => q.state === "sent" && q.by === me && q.run !== view.active?.run);
		if (waits) {
			void rewrite(waits);
			return true;
		}
		const last = view.lines.findLast((l): l is Said => l.kind === "said" && l.state === "sent");
		if (!last || busy) return false;
		edit(last);
		return true;
	};
	return (
		<section className={css.chat} aria-label="Conversation">
			<Title id={id} conversation={conversation} session={view.session} />
			{pages}
			{view.active && <Strip session={id} active={view.active} limit={view.session.max_steps} onStop={onStop} />}
			<DeedsContext value={workspace.role === "viewer" ? null : deeds}>
				<Lines view={view} names={nameOf} author={view.session.created_by} session={id} onEarlier={earlier} />
			</DeedsContext>
			{view.queue.length > 0 && (
				<ul className={css.queue} aria-label="Waiting messages">
					{view.queue.map((q, i) => (
						<Waiting
							key={q.key}
							said={q}
							joins={q.run === view.active?.run}
							may={workspace.role === "viewer" ? "read" : q.by === me ? "change" : "remove"}
							last={!view.queue.slice(i + 1).some((l) => l.state === "sent")}
							onSteer={() => void move(q, "steer")}
							onLater={() => void move(q, "queue")}
							onEdit={() => void rewrite(q)}
							onRemove={() => void takeBack(q)}
						/>
					))}
				</ul>
			)}
			<div id="answers" className={css.answers} />
			{workspace.role === "viewer" ? (
				<p className={css.reading}>You are reading. Viewers see everything as it happens.</p>
			) : (
				<Composer
					key={editing ? draftOf(id, editing) : id}
					draft={editing ? draftOf(id, editing) : id}
					editing={editing && { files: editing.files, onCancel: endEdit }}
					running={view.active !== null}
					refuses={refusable.length}
					onRefuse={refuse}
					onTakeBack={takeBackRefusal}
					onSend={(text, mode, files) => (editing ? void resend(editing, text, files) : send(text, mode, files))}
					suggest={suggest}
					tools={
						<>
							<ModelMenu value={view.session} onChoose={(m) => void change(m)} />
							<ToolsMenu session={view.session} onChange={(tools) => void change({ tools })} />
						</>
					}
					onRecall={recall}
					autoFocus={editing !== undefined || !matchMedia("(pointer: coarse)").matches}
				/>
			)}
			<Suspense>
				<Announcer view={view} questions={questions} answers={workspace.role !== "viewer"} />
			</Suspense>
		</section>
	);
}

/** A message that waits for the run to end, and what can be done with it. */
function Waiting({
	said,
	joins,
	may,
	last,
	onSteer,
	onLater,
	onEdit,
	onRemove,
}: {
	said: Said;
	/** It joins the run that is active, before its next step. */
	joins: boolean;
	may: "read" | "remove" | "change";
	last: boolean;
	onSteer: () => void;
	onLater: () => void;
	onEdit: () => void;
	onRemove: () => void;
}) {
	const waits = said.state === "sent" && !joins;
	return (
		<li>
			<Signal name="queued" />
			<span className="cut flex-1">{said.text || said.files[0]?.name}</span>
			{said.state === "unsent" && <span className="text-small text-ink-3">not sent yet</span>}
			{said.state === "sent" && joins && <span className="text-small text-ink-3">joins before the next step</span>}
			{said.state === "failed" && <span className="text-small text-stop">{said.error}</span>}
			{waits && may === "change" && (
				<>
					<Button small look="quiet" icon={CornerUpRight} onClick={onSteer}>
						Steer now
					</Button>
					{!last && <IconButton icon={ArrowDown} label="Move to the end of the queue" onClick={onLater} />}
				</>
			)}
			{((waits && may === "change") || said.state === "failed") && (
				<IconButton icon={Pencil} label="Take it back and edit it" onClick={onEdit} />
			)}
			{waits && may !== "read" && <IconButton icon={X} label="Remove from the queue" onClick={onRemove} />}
		</li>
	);
}

function Title({ id, conversation, session }: { id: string; conversation: Conversation; session: Schemas["Session"] }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const [editing, setEditing] = useState<string>();
	const rename = async () => {
		const title = editing?.trim();
		setEditing(undefined);
		if (!title || title === session.title) return;
		const answer = await unwrap(client.api.PATCH("/api/sessions/{id}", { params: { path: { id } }, body: { title } }));
		conversation.renamed(answer.session);
		void queries.invalidateQueries({ queryKey: [workspace.id, "sessions"] });
	};
	return (
		<header className={css.top}>
			<Link to="/w/$slug/sessions" params={{ slug: slugOf(workspace) }} className={css.back} aria-label="All sessions">
				<Icon of={ChevronLeft} />
			</Link>
			{editing === undefined ? (
				<>
					<h1 className="cut font-mid">{session.title ?? "New session"}</h1>
					{workspace.role !== "viewer" && <IconButton icon={Pencil} label="Rename" onClick={() => setEditing(session.title ?? "")} />}
				</>
			) : (
				<form
					className={css.rename}
					onSubmit={(e) => {
						e.preventDefault();
						void rename();
					}}
				>
					<input
						aria-label="Title"
						value={editing}
						autoFocus
						maxLength={200}
						onChange={(e) => setEditing(e.target.value)}
						onKeyDown={(e) => e.key === "Escape" && setEditing(undefined)}
					/>
					<IconButton type="submit" icon={Check} label="Save the title" />
				</form>
			)}
		</header>
	);
}

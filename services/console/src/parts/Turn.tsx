import type { Schemas } from "@signalbox/client";
import { Link } from "@tanstack/react-router";
import { ArrowLeftRight, ChevronLeft, ChevronRight, Copy, GitBranch, Lightbulb, Link2, Pencil, RotateCcw } from "lucide-react";
import { createContext, memo, use, useEffect, useMemo, useRef, useState } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import { copyText } from "../insecure.ts";
import type { Figures, Line, Note, Said, Step } from "../live/conversation.ts";
import { hasUnsaved } from "../storage.ts";
import { clock, money, timeOfDay, tokens } from "../words.ts";
import { Calls } from "./Call.tsx";
import { Back } from "./Clock.tsx";
import { drafts } from "./Composer.tsx";
import { type ModelChoice, otherModel, useModels, usePresets } from "./choices.tsx";
import { Button, Face, Icon, IconButton, Notice } from "./controls.tsx";
import { Markdown } from "./Markdown.tsx";
import { Picture } from "./Picture.tsx";
import { Signal } from "./Signal.tsx";
import { marksOf, Sources } from "./Sources.tsx";
import css from "./Turn.module.css";

export interface TurnProps {
	line: Line;
	session: string;
	/** The run of this line is active, and this is its last line. */
	live: boolean;
	last: boolean;
	/** A link led to it. */
	found: boolean;
	/** The first step of the answer that ends with this line. */
	answer: Step | undefined;
	/** What the answer's run took; undefined if it is not known, or not an answer's end. */
	figures: Figures | undefined;
	/** The text of the answer that ends with a line. */
	textOfAnswer: (index: number) => string;
	/** Its place among the lines, and who measures it. */
	index: number;
	measure: (turn: HTMLElement | null) => void;
	names: (member: string) => string;
	/** The member to whom stored messages belong, which do not name theirs. */
	author: string;
}

/** One stop on the line of a conversation. */
export const Turn = memo(function Turn({
	line,
	session,
	live,
	last,
	found,
	answer,
	figures,
	textOfAnswer,
	index,
	measure,
	names,
	author,
}: TurnProps) {
	const node =
		line.kind === "said" ? (
			<Face name={names(line.by ?? author)} id={line.by ?? author} />
		) : line.kind === "note" ? (
			noteNode(line)
		) : (
			<span className={css.dot} data-now={live || undefined} data-done={line.state === "done" || undefined} />
		);
	return (
		<li
			ref={measure}
			className={css.turn}
			data-index={index}
			data-found={found || undefined}
			id={`m-${line.key}`}
			data-live={live || undefined}
			data-last={last || undefined}
			data-void={(line.kind === "step" && line.state === "void") || undefined}
			inert={line.kind === "step" && line.state === "void"}
		>
			<div className={css.node}>{node}</div>
			<div className="min-w-0">
				{line.kind === "said" && <SaidBody said={line} name={names(line.by ?? author)} session={session} />}
				{line.kind === "step" && <StepBody step={line} session={session} live={live} />}
				{line.kind === "step" && answer && !live && (
					<AnswerFoot step={line} first={answer} figures={figures} copy={() => textOfAnswer(index)} />
				)}
				{line.kind === "note" && <NoteBody note={line} last={last} />}
			</div>
		</li>
	);
});

function noteNode(n: Note) {
	if (n.tone === "stop") return <Signal name="failed" />;
	if (n.tone === "wait") return <Signal name="waiting" label="Stopped" />;
	if (n.tone === "note")
		return (
			<span className={css.swap}>
				<Icon of={ArrowLeftRight} />
			</span>
		);
	return <Signal name="stopped" />;
}

function SaidBody({ said, name, session }: { said: Said; name: string; session: string }) {
	return (
		<>
			<div className={css.meta}>
				<b>{name}</b>
				<time dateTime={said.at}>{timeOfDay(said.at)}</time>
				{said.state === "sending" && <span>Sending{said.progress !== undefined && ` ${Math.round(said.progress * 100)} %`}</span>}
				{said.state === "sent" && <SaidDeeds said={said} />}
				{said.state === "unsent" && (
					<span>
						Not sent yet.{" "}
						{hasUnsaved() ? "Keep this page open: it is sent when the line is back." : "It is kept here and sent when the line is back."}
					</span>
				)}
			</div>
			<div className={css.say}>
				{said.text && <p className="whitespace-pre-wrap">{said.text}</p>}
				{said.files.length > 0 && (
					<ul className={css.files}>
						{said.files.map((f, i) => (
							// biome-ignore lint/suspicious/noArrayIndexKey: files may be the same
							<li key={i}>{f.url && f.mediaType.startsWith("image/") ? <Picture of={f} /> : f.name}</li>
						))}
					</ul>
				)}
			</div>
			{said.state === "failed" && (
				<p className="mt-1 text-small text-stop" role="alert">
					Not sent. {said.error}{" "}
					<Button small onClick={() => drafts.set(session, said.text, said.files)}>
						Write it again
					</Button>
				</p>
			)}
		</>
	);
}

function StepBody({ step, session, live }: { step: Step; session: string; live: boolean }) {
	const { sources, citations } = step;
	const marks = useMemo(() => marksOf(sources, citations), [sources, citations]);
	return (
		<>
			{step.reasoning && <Reasoning text={step.reasoning} streams={live && step.text === "" && step.calls.length === 0} />}
			{(step.text || (live && step.calls.length === 0 && !step.reasoning)) && (
				<Markdown text={step.text} marks={marks} writing={live && step.state === "writing" && step.calls.length === 0} />
			)}
			{sources.length > 0 && <Sources sources={sources} citations={citations} />}
			{step.calls.length > 0 && <Calls calls={step.calls} session={session} run={step.run} />}
		</>
	);
}

/** What can be done with an answer, and what it took. */
function AnswerFoot({ step, first, figures, copy }: { step: Step; first: Step; figures: Figures | undefined; copy: () => string }) {
	const deeds = use(DeedsContext);
	const { workspace } = useWorkspace();
	const took = [step.simulated ? "Simulated" : step.model, ...(figures ? tookWords(figures) : [])].filter(Boolean).join(" · ");
	const id = first.messageId;
	return (
		<footer className={css.foot}>
			{id && deeds && <Versions id={id} siblings={first.siblings} deeds={deeds} />}
			<IconButton icon={Copy} label="Copy as Markdown" onClick={() => void copyText(copy())} />
			{id && deeds && (
				<>
					<IconButton
						icon={RotateCcw}
						label="Answer again"
						disabled={deeds.busy}
						{...(deeds.busy ? { title: "Answer again: when this run has ended" } : {})}
						onClick={() => deeds.again(id)}
					/>
					<IconButton icon={GitBranch} label="New session from here" onClick={() => deeds.fork(id)} />
				</>
			)}
			{id && (
				<IconButton
					icon={Link2}
					label="Link to this message"
					onClick={() => void copyText(`${location.href.split("#")[0]}#m-${step.messageId ?? id}`)}
				/>
			)}
			{step.run ? (
				<Link
					to="/w/$slug/runs/$id"
					params={{ slug: slugOf(workspace), id: step.run }}
					className={`n ml-2 ${css.took}`}
					title="Open the run"
				>
					{took || "Run"}
				</Link>
			) : (
				<span className="n ml-2">{took}</span>
			)}
		</footer>
	);
}

/** What a run took: tokens, the list price if it is known, and the time. */
function tookWords({ usage: u, cost_micros: cost, started_at: began, ended_at: ended }: Figures): string[] {
	const cached = u.cache_read_tokens > 0 ? ` (${tokens(u.cache_read_tokens)} cached)` : "";
	return [
		`${tokens(u.input_tokens)} in${cached}`,
		`${tokens(u.output_tokens)} out`,
		...(cost == null || cost === 0 ? [] : [money(cost)]),
		...(began && ended ? [clock(Date.parse(ended) - Date.parse(began))] : []),
	];
}

/** What can be done with a person's message. */
function SaidDeeds({ said }: { said: Said }) {
	const deeds = use(DeedsContext);
	if (!deeds) return null;
	return (
		<span className={css.deeds}>
			<Versions id={said.key} siblings={said.siblings} deeds={deeds} />
			<IconButton
				icon={Pencil}
				label="Edit this message"
				className={css.quiet ?? ""}
				disabled={deeds.busy}
				{...(deeds.busy ? { title: "Edit this message: when this run has ended" } : {})}
				onClick={() => deeds.edit(said)}
			/>
		</span>
	);
}

/** Switches between the versions of a message or an answer. The stream brings the branch. */
function Versions({ id, siblings = [], deeds }: { id: string; siblings?: readonly string[] | undefined; deeds: Deeds }) {
	const at = siblings.indexOf(id);
	if (at < 0 || siblings.length < 2) return null;
	const step = (icon: typeof ChevronLeft, label: string, to: string | undefined) => (
		<IconButton icon={icon} label={label} disabled={!to || deeds.busy} onClick={() => to && deeds.show(to)} />
	);
	return (
		<span className={css.versions} role="group" aria-label={`Version ${at + 1} of ${siblings.length}`}>
			{step(ChevronLeft, "Previous version", siblings[at - 1])}
			<span className="n">
				{at + 1}/{siblings.length}
			</span>
			{step(ChevronRight, "Next version", siblings[at + 1])}
		</span>
	);
}

/** The model's reasoning: open only while it is the one thing that streams, unless the person chose. */
function Reasoning({ text, streams }: { text: string; streams: boolean }) {
	const [chosen, setChosen] = useState<boolean>();
	const began = useRef(Date.now());
	const [seconds, setSeconds] = useState<number>();
	const streamed = useRef(streams);
	useEffect(() => {
		if (streamed.current && !streams) setSeconds(Math.max(1, Math.round((Date.now() - began.current) / 1000)));
		streamed.current = streams;
	}, [streams]);
	const open = chosen ?? streams;
	return (
		<>
			<button type="button" className={css.think} aria-expanded={open} onClick={() => setChosen(!open)}>
				<Icon of={Lightbulb} />
				{streams ? "Thinking" : seconds ? `Thought for ${seconds} s` : "Thought"}
				<Icon of={ChevronRight} size={12} />
			</button>
			{open && <div className={css.thought}>{text}</div>}
		</>
	);
}

/** What a person can do with the turns of a session. */
export interface Deeds {
	/** A run is active or queued: the branch cannot change. */
	busy: boolean;
	send: (text: string) => void;
	edit: (said: Said) => void;
	/** Has a message answered again, or an answer made again. */
	again: (id: string) => void;
	/** Shows the branch with a message. */
	show: (id: string) => void;
	/** Makes a session of the messages up to one. */
	fork: (id: string) => void;
	/** Has another model go on; false if that was refused. */
	goOnWith: (model: ModelChoice) => Promise<boolean>;
	session: Schemas["Session"];
}

/** Null for those who may only read. */
export const DeedsContext = createContext<Deeds | null>(null);

function NoteBody({ note, last }: { note: Note; last: boolean }) {
	const deeds = use(DeedsContext);
	const { workspace } = useWorkspace();
	if (note.tone === "note") return <p className={css.event}>{note.text}</p>;
	if (note.tone === "plain") return <p className="text-small text-ink-2">{note.text}</p>;
	return (
		<Notice tone={note.tone}>
			<b className="font-bold">{note.title}</b> {note.text} {note.back && <Back at={note.back} />} {note.kept}
			{note.tone === "stop" && note.code && <p className="n mt-1 text-small text-ink-3">{note.code}</p>}
			{last && (
				<p className="mt-2 flex flex-wrap items-center gap-2">
					{deeds && note.about !== "budget" && (
						<Button small onClick={() => deeds.send("Go on.")}>
							{note.about === "steps" ? <GoOnFor session={deeds.session} /> : "Go on"}
						</Button>
					)}
					{deeds && note.about === "accounts" && <OtherModel deeds={deeds} />}
					{note.about === "accounts" && workspace.role === "owner" && (
						<Link to="/w/$slug/accounts" params={{ slug: slugOf(workspace) }}>
							See accounts
						</Link>
					)}
					{note.about === "budget" && (
						<Link to="/w/$slug/usage" params={{ slug: slugOf(workspace) }}>
							See usage and budgets
						</Link>
					)}
				</p>
			)}
		</Notice>
	);
}

/** Says how many steps the next run may have: its session's limit, or its preset's. */
function GoOnFor({ session }: { session: Schemas["Session"] }) {
	const preset = usePresets().data?.find((p) => p.name === session.preset);
	const steps = session.max_steps ?? preset?.max_steps;
	return steps ? `Go on for ${steps} more` : "Go on";
}

/** Goes on with the first model of another provider that the workspace can call. */
function OtherModel({ deeds }: { deeds: Deeds }) {
	const found = otherModel(useModels().data, deeds.session);
	const [busy, setBusy] = useState(false);
	if (!found) return null;
	const goOn = async () => {
		setBusy(true); // until the message is there: a second one would be another run
		if (!(await deeds.goOnWith({ model: found.id, provider: found.provider }))) setBusy(false);
	};
	return (
		<Button small busy={busy} onClick={() => void goOn()}>
			Go on with {found.name}
		</Button>
	);
}

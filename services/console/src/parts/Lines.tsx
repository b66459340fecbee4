import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown } from "lucide-react";
import { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "react";
import { useActions } from "../actions.ts";
import { answerEndingAt, type Line, type View } from "../live/conversation.ts";
import { Button } from "./controls.tsx";
import css from "./Lines.module.css";
import { Signal } from "./Signal.tsx";
import { Turn } from "./Turn.tsx";

/** How near the end counts as following it. */
const near = 64;
/** Up to so many lines all of them are in the page, where the browser's own search finds them. */
const whole = 200;
/** How many messages are loaded at once to find the one that a link names. */
const searched = 1000;
/** Ticks stand no closer to each other, in pixels. */
const apart = 7;

interface Props {
	view: View;
	names: (member: string) => string;
	author: string;
	session: string;
	/** Loads the messages before those in the view: a page, or so many. */
	onEarlier: (limit?: number) => Promise<void>;
}

/**
 * The lines of a conversation. They follow the end only while the reader is there; else the page
 * stays where it is, also when lines above change their height. Of a long conversation only the
 * lines near the window are in the page, and earlier ones are loaded as the reader comes near them.
 */
export function Lines({ view, names, author, session, onEarlier }: Props) {
	const { lines, active } = view;
	const shown = useRef(lines);
	shown.current = lines;
	const box = useRef<HTMLDivElement>(null);
	const wasAt = useRef(0);
	const following = useRef(!location.hash.startsWith("#m-"));
	const [away, setAway] = useState(false);
	const [found, setFound] = useState<string>();
	const sized = useRef(0);
	const inPage = useRef<[from: number, to: number]>([0, 0]);
	const renderAgain = useReducer((n: number) => n + 1, 0)[1];
	const follow = () => {
		const b = box.current;
		if (b && following.current) b.scrollTop = b.scrollHeight;
	};
	const virtual = useVirtualizer({
		count: lines.length,
		getScrollElement: () => box.current,
		estimateSize: (i) => estimate(lines[i]),
		getItemKey: useCallback((i: number) => shown.current[i]?.key ?? i, []), // another function would measure all lines again
		overscan: lines.length > whole ? 8 : whole,
		paddingStart: view.earlier ? 52 : 20,
		anchorTo: "end", // what is read stays where it is when lines come before it
		directDomUpdates: true, // a line that grows moves the others by itself: nothing renders again
		onChange: (v) => {
			const total = v.getTotalSize();
			if (total === sized.current) return;
			sized.current = total;
			follow();
			const range = v.calculateRange();
			const [from, to] = inPage.current;
			// What an answer adds renders by itself. Lines that shrink make room for others, and the ticks move.
			if (range && (active?.state !== "running" || range.startIndex < from || range.endIndex > to)) renderAgain();
		},
	});
	// A line that is read does not move when it is opened; what is above it may grow.
	virtual.shouldAdjustScrollPositionOnItemSizeChange = (item, _, v) => !following.current && item.end <= (v.scrollOffset ?? 0);
	const height = virtual.getTotalSize();
	const items = virtual.getVirtualItems();
	sized.current = height;
	inPage.current = [items[0]?.index ?? 0, items.at(-1)?.index ?? 0];

	// biome-ignore lint/correctness/useExhaustiveDependencies: the position follows the lines
	useLayoutEffect(follow, [lines, height]);
	const onScroll = () => {
		const b = box.current;
		if (!b) return;
		// The end moves away by itself while lines are measured: only who goes up has left it.
		if (b.scrollHeight - b.scrollTop - b.clientHeight < near) following.current = true;
		else if (b.scrollTop < wasAt.current) following.current = false;
		wasAt.current = b.scrollTop;
		if (away === following.current) setAway(!away); // React commits even a state that stays the same
		if (b.scrollTop < 2 * b.clientHeight && earlier !== "failed") void loadEarlier();
	};
	const [earlier, setEarlier] = useState<"idle" | "loading" | "failed">("idle");
	const loading = useRef(false);
	const loadEarlier = useCallback(
		async (limit?: number) => {
			if (!view.earlier || loading.current) return;
			loading.current = true;
			setEarlier("loading");
			const loaded = await onEarlier(limit).then(
				() => true,
				() => false,
			);
			loading.current = false;
			setEarlier(loaded ? "idle" : "failed");
		},
		[view.earlier, onEarlier],
	);
	const toEnd = useCallback(() => {
		following.current = true;
		const b = box.current;
		if (b) b.scrollTop = b.scrollHeight;
	}, []);
	const show = useCallback(
		(index: number, align: "start" | "center") => {
			following.current = false;
			setAway(true);
			virtual.scrollToIndex(index, { align });
		},
		[virtual],
	);

	// A link to a message shows it, once it is there.
	const wanted = useRef(location.hash);
	const seek = useCallback(() => {
		const index = wanted.current.startsWith("#m-") ? lines.findIndex((l) => idOf(l) === wanted.current.slice(3)) : -1;
		if (index < 0) {
			if (wanted.current.startsWith("#m-")) void loadEarlier(searched);
			return;
		}
		setFound(wanted.current.slice(3));
		wanted.current = "";
		show(index, "center");
	}, [lines, loadEarlier, show]);
	useEffect(seek, [seek]);
	useEffect(() => {
		const onHash = () => {
			wanted.current = location.hash;
			seek();
		};
		addEventListener("hashchange", onHash);
		return () => removeEventListener("hashchange", onHash);
	}, [seek]);

	const questions = useMemo(() => lines.flatMap((l, i) => (l.kind === "said" ? [i] : [])), [lines]);
	const startOf = (i: number) => virtual.measurementsCache[i]?.start ?? 0;
	const jump = (by: 1 | -1) => {
		const top = box.current?.scrollTop ?? 0;
		const at = by < 0 ? questions.findLast((i) => startOf(i) - 16 < top - 4) : questions.find((i) => startOf(i) - 16 > top + 4);
		if (at !== undefined) show(at, "start");
		else if (by > 0) toEnd();
		else void loadEarlier();
	};
	useActions([
		{ name: "Previous question", keys: "alt+arrowup", run: () => jump(-1) },
		{ name: "Next question", keys: "alt+arrowdown", run: () => jump(1) },
	]);

	const textOfAnswer = useCallback(
		(index: number) =>
			answerEndingAt(shown.current, index)
				.map((s) => s.text)
				.filter(Boolean)
				.join("\n\n"),
		[],
	);

	return (
		<div className={css.frame}>
			<div className="scroll" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label="Messages" aria-live="off">
				<div className={css.room} style={{ paddingTop: items[0]?.start ?? height, paddingBottom: height - (items.at(-1)?.end ?? height) }}>
					{view.earlier && (
						<p className={css.earlier}>
							<Button small busy={earlier === "loading"} onClick={() => void loadEarlier()}>
								{earlier === "failed" ? "Earlier messages did not come. Load them again" : "Earlier messages"}
							</Button>
						</p>
					)}
					<ol className={css.talk}>
						{items.map(({ index, key }) => {
							const line = lines[index];
							if (!line) return null;
							const last = index === lines.length - 1;
							const answer = active?.run === line.run ? [] : answerEndingAt(lines, index);
							return (
								<Turn
									key={key}
									index={index}
									measure={virtual.measureElement}
									line={line}
									session={session}
									last={last}
									live={last && active?.state === "running" && line.kind === "step"}
									found={idOf(line) === found}
									answer={answer.find((s) => s.messageId) ?? answer[0]}
									figures={answer.length > 0 && line.run ? view.figures.get(line.run) : undefined}
									textOfAnswer={textOfAnswer}
									names={names}
									author={author}
								/>
							);
						})}
					</ol>
				</div>
				<div className={css.end}>
					{active?.state === "running" && lines.at(-1)?.kind === "said" && <Signal name="running" label="Signalbox begins" />}
				</div>
			</div>
			{questions.length > 1 && height > (box.current?.clientHeight ?? 0) && (
				<Ticks
					places={questions.map((i) => ({ index: i, at: startOf(i) / height, text: textOf(lines[i]) }))}
					room={box.current?.clientHeight ?? 0}
					onChoose={(i) => show(i, "start")}
				/>
			)}
			{away && (
				<Button small icon={ArrowDown} className={css.jump ?? ""} onClick={toEnd}>
					{active ? `Step ${active.step + 1} is being written` : "To the end"}
				</Button>
			)}
		</div>
	);
}

/**
 * A tick beside the scrollbar for each question; those that would touch are one. For pointers only:
 * ⌥↑ and ⌥↓ do the same.
 */
function Ticks({
	places,
	room,
	onChoose,
}: {
	places: readonly { index: number; at: number; text: string }[];
	room: number;
	onChoose: (index: number) => void;
}) {
	const shown: (typeof places)[number][] = [];
	for (const p of places) {
		const before = shown.at(-1);
		if (!before || (p.at - before.at) * room >= apart) shown.push(p);
	}
	return (
		<div className={css.ticks} aria-hidden="true">
			{shown.map((p) => (
				<button
					key={p.index}
					type="button"
					tabIndex={-1}
					title={p.text}
					style={{ top: `${p.at * 100}%` }}
					onClick={() => onChoose(p.index)}
				/>
			))}
		</div>
	);
}

/** A line's id in a link. */
const idOf = (l: Line): string => (l.kind === "step" && l.messageId) || l.key;

const textOf = (l: Line | undefined): string => (l?.kind === "said" ? l.text.slice(0, 160) : "");

/** A guess of a line's height, until it is measured. */
function estimate(l: Line | undefined): number {
	if (l?.kind === "said") return 70 + Math.ceil(l.text.length / 75) * 25;
	if (l?.kind === "step") return 60 + Math.ceil(l.text.length / 80) * 25 + Math.min(l.calls.length, 7) * 37;
	return 44;
}

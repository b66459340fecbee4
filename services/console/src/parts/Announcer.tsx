import { useRef } from "react";
import { asked, happened } from "../live/announce.ts";
import type { Question, View } from "../live/conversation.ts";

/** Says what happens since the page was opened, and what is asked. */
export function Announcer({ view, questions }: { view: View; questions: readonly Question[] }) {
	const first = useRef(view.active ? undefined : view.lines.at(-1));
	return (
		<>
			<p className="sr" aria-live="polite">
				{view.lines.at(-1) === first.current ? "" : happened(view)}
			</p>
			<p className="sr" aria-live="assertive">
				{asked(questions)}
			</p>
		</>
	);
}

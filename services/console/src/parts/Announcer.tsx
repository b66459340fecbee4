import { useState } from "react";
import { announcer, asked } from "../live/announce.ts";
import type { Question, View } from "../live/conversation.ts";

/** Says what happens since the page was opened, and what is asked. */
export function Announcer({ view, questions, answers }: { view: View; questions: readonly Question[]; answers: boolean }) {
	const [say] = useState(announcer);
	return (
		<>
			<p className="sr" aria-live="polite">
				{say(view)}
			</p>
			<p className="sr" aria-live="assertive">
				{asked(questions, answers)}
			</p>
		</>
	);
}

import { Suspense, useEffect, useRef, useState } from "react";
import { CopyButton } from "./CopyButton.tsx";
import { later } from "./later.tsx";
import css from "./Markdown.module.css";

/** Fetched when there is code to colour on the screen. */
const Highlighted = later(
	() => import("./Highlighted.tsx").then((m) => m.Highlighted),
	({ text }) => text,
);

/** Longer code has no colours: they would take too long. */
const longest = 20_000;

/** A block of code with its language. One that is still written has no colours yet. */
export function Code({ text, language, open, caret }: { text: string; language: string; open: boolean; caret: boolean }) {
	const [seen, setSeen] = useState(false);
	const block = useRef<HTMLPreElement>(null);
	const plain = open || language === "" || text.length > longest;
	useEffect(() => {
		if (plain || !block.current) return;
		const observer = new IntersectionObserver(([e]) => e?.isIntersecting && setSeen(true));
		observer.observe(block.current);
		return () => observer.disconnect();
	}, [plain]);
	return (
		<div className={css.code}>
			<div className={css.bar}>
				<span>{language}</span>
				{!open && <CopyButton look="quiet" text={text} />}
			</div>
			<pre ref={block} tabIndex={0} role="group" aria-label={language ? `Code, ${language}` : "Code"}>
				<code>
					{plain || !seen ? (
						text
					) : (
						<Suspense fallback={text}>
							<Highlighted text={text} language={language} />
						</Suspense>
					)}
				</code>
				{caret && <span className={css.caret} />}
			</pre>
		</div>
	);
}

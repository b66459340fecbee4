/** Text with the words that were searched for marked. */
export function Marked({ text, words }: { text: string; words: string }) {
	const at = words ? text.toLowerCase().indexOf(words.toLowerCase()) : -1;
	if (at < 0) return text;
	return (
		<>
			{text.slice(0, at)}
			<mark>{text.slice(at, at + words.length)}</mark>
			{text.slice(at + words.length)}
		</>
	);
}

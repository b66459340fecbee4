/** What browsers have only over https and on localhost, for a console that is opened over plain http. */

/** Returns a new Idempotency-Key. */
export const newKey = (): string => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

/** Copies a text. It rejects if the browser does not allow it. */
export async function copyText(text: string): Promise<void> {
	if (navigator.clipboard) return navigator.clipboard.writeText(text);
	const fill = (e: ClipboardEvent) => {
		e.preventDefault();
		e.stopImmediatePropagation(); // an editor would copy its selection
		e.clipboardData?.setData("text/plain", text);
	};
	addEventListener("copy", fill, { capture: true, once: true });
	const done = document.execCommand("copy");
	removeEventListener("copy", fill, { capture: true });
	if (!done) throw new Error("the browser refused to copy");
}

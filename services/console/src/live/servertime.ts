/**
 * The server's clock, as far as its answers tell it. How long a call runs is counted from a time of the
 * server, and the browser's clock may be minutes off.
 */
const latest: number[] = [];
const kept = 16;

/** Notes the Date of an answer that has just come. */
export function noteServerDate(date: string | null, now = Date.now()): void {
	const ahead = Date.parse(date ?? "") - now;
	if (Number.isNaN(ahead)) return;
	latest.push(ahead);
	if (latest.length > kept) latest.shift();
}

/** The time by the server's clock; the browser's while nothing is known, or while the two differ by less than dates can tell. */
export function serverNow(now = Date.now()): number {
	if (latest.length === 0) return now;
	// A Date has no parts of a second, and its answer was under way: the largest difference is the nearest.
	const ahead = Math.max(...latest);
	return Math.abs(ahead) < 2000 ? now : now + ahead;
}

/** How long something took: 84 ms, 2.3 s, 1 min 12 s, 2 h 5 min. */
export function durationWords(ms: number): string {
	const n = Math.max(0, Math.round(ms));
	if (n < 1000) return `${n} ms`;
	if (n < 59_950) return `${(n / 1000).toFixed(1)} s`;
	const s = Math.round(n / 1000);
	return s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** The letter of the worker that holds a run's claim: the first is a, the 27th aa. A run that was parked goes on with the next letter. */
export function workerOf(claim: number): string {
	let name = "";
	for (let n = claim; n > 0; n = Math.floor((n - 1) / 26)) name = String.fromCharCode(97 + ((n - 1) % 26)) + name;
	return name;
}

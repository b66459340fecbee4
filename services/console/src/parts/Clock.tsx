import { useEffect, useState } from "react";
import { serverNow } from "../live/servertime.ts";
import { backAt, clock } from "../words.ts";

/** The time now by the server's clock, once a second. */
export function useNow(): number {
	const [now, setNow] = useState(serverNow());
	useEffect(() => {
		const t = setInterval(() => setNow(serverNow()), 1000);
		return () => clearInterval(t);
	}, []);
	return now;
}

/** How long something has gone on: 0:07. */
export function Elapsed({ since }: { since: number }) {
	return <span className="n">{clock(useNow() - since)}</span>;
}

/** What is left until a time: 0:21. It ends at 0:00. */
export function Countdown({ until }: { until: string }) {
	return <span className="n">{clock(Date.parse(until) - useNow() + 999)}</span>;
}

/** Says when something is back, and in how long. */
export function Back({ at }: { at: string }) {
	return backAt(at, useNow());
}

/** What is left until a time, as a ring that closes, and as a clock. */
export function Ring({ begun, until }: { begun: string; until: string }) {
	const now = useNow();
	const whole = Math.max(1, Date.parse(until) - Date.parse(begun));
	const left = Math.max(0, Math.min(1, (Date.parse(until) - now) / whole));
	const around = 2 * Math.PI * 6;
	return (
		<span className="flex items-center gap-2 font-mid whitespace-nowrap text-wait">
			<svg width="16" height="16" viewBox="0 0 16 16" fill="none" strokeWidth="3" aria-hidden="true">
				<circle cx="8" cy="8" r="6" stroke="var(--wait-edge)" strokeOpacity=".4" />
				<circle cx="8" cy="8" r="6" stroke="var(--lamp-wait)" strokeDasharray={`${around * left} ${around}`} transform="rotate(-90 8 8)" />
			</svg>
			<span className="n">{clock(Date.parse(until) - now + 999)}</span>
		</span>
	);
}

import { ExternalLink } from "lucide-react";
import { Countdown } from "./Clock.tsx";
import { Icon } from "./controls.tsx";
import { Signal } from "./Signal.tsx";

/** A link to a page of a provider. */
export function Outside({ href, children }: { href: string; children: string }) {
	return (
		<a href={href} target="_blank" rel="noreferrer" className="inline-flex items-center gap-1">
			{children}
			<Icon of={ExternalLink} size={13} />
			<span className="sr"> (opens a new tab)</span>
		</a>
	);
}

/** Says that something is awaited, and how long. */
export function Waiting({ until, text }: { until: string; text: string }) {
	return (
		<p className="flex items-center gap-2 text-small text-ink-2">
			<Signal name="running" label="" />
			<span className="flex-1" role="status">
				{text}
			</span>
			<span>
				<Countdown until={until} /> left
			</span>
		</p>
	);
}

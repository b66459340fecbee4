import { SignalboxError } from "@signalbox/client";
import { Link, useRouter } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { signedOut } from "../client.ts";
import { Blank, Button } from "../parts/controls.tsx";
import { hasUnsaved } from "../storage.ts";

/** A page that is not there, or that the person may not see. */
export function NotHere() {
	const router = useRouter();
	return (
		<Blank
			heading="h1"
			line="broken"
			title="Not here"
			action={<Button onClick={() => void router.navigate({ to: "/" })}>Back to the start</Button>}
		>
			This page does not exist, or your workspace may not see it. We cannot say which.
		</Blank>
	);
}

/** Why there is no data of a query; null while the first try is under way. While it is tried again, the reason stays. */
export function useFailure(query: { data: unknown; error: Error | null; errorUpdateCount: number }): Error | null {
	const last = useRef<Error>(null);
	if (query.error) last.current = query.error;
	return query.data === undefined && query.errorUpdateCount > 0 ? last.current : null;
}

/** A page that could not be loaded, with what is known about why. */
export function Failed({ error, onRetry, heading = "h1" }: { error: Error; onRetry?: () => void; heading?: "h1" | "h2" }) {
	const router = useRouter();
	if (!(error instanceof SignalboxError)) return <Unfetched error={error} heading={heading} />;
	if (error.status === 401) return <SignedOut heading={heading} />;
	if (error.status === 404) return <NotHere />;
	return (
		<Blank
			heading={heading}
			line="broken"
			title="This could not be shown"
			action={<Button onClick={onRetry ?? (() => void router.invalidate())}>Try now</Button>}
		>
			{error.message} Nothing is lost, it is only not shown.
		</Blank>
	);
}

/**
 * A page with code that could not be fetched: the network was cut, or the server has a newer version.
 * Only a reload fetches it again.
 */
function Unfetched({ error, heading }: { error: Error; heading: "h1" | "h2" }) {
	useEffect(() => {
		const reload = () => hasUnsaved() || location.reload();
		addEventListener("online", reload);
		return () => removeEventListener("online", reload);
	}, []);
	return (
		<Blank
			heading={heading}
			line="broken"
			title="This could not be shown"
			action={<Button onClick={() => location.reload()}>Reload</Button>}
		>
			A part of this page could not be fetched or shown ({error.message}). <Kept />
		</Blank>
	);
}

/** Says whether what the person wrote and has not sent outlasts this page. */
export function Kept() {
	return hasUnsaved()
		? "This browser's storage is full: what you wrote last is lost when this page is reloaded or closed."
		: "What you wrote is kept in this browser.";
}

/** A page whose person is signed out. It stays only if leaving it would lose something. */
function SignedOut({ heading }: { heading: "h1" | "h2" }) {
	useEffect(() => signedOut.tell(), []);
	return (
		<Blank heading={heading} line="broken" title="You are signed out" action={<Link to="/sign-in">Sign in again</Link>}>
			<Kept />
		</Blank>
	);
}

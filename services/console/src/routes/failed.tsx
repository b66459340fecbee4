import { SignalboxError } from "@signalbox/client";
import { Navigate, useRouter } from "@tanstack/react-router";
import { Blank, Button } from "../parts/controls.tsx";

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

/** A page that could not be loaded, with what is known about why. */
export function Failed({ error, onRetry, heading = "h1" }: { error: Error; onRetry?: () => void; heading?: "h1" | "h2" }) {
	const router = useRouter();
	if (error instanceof SignalboxError && error.status === 401) return <Navigate to="/sign-in" />;
	if (error instanceof SignalboxError && error.status === 404) return <NotHere />;
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

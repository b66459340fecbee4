import { type ComponentType, lazy } from "react";
import { Button } from "./controls.tsx";

/**
 * A component whose code is fetched when it is first shown. If that fails, because the network was cut or
 * the server has a newer version, `instead` stands in its place, and the rest of the page stays.
 */
export function later<P extends object>(fetched: () => Promise<ComponentType<P>>, instead: ComponentType<P> = Missing) {
	return lazy(() =>
		fetched().then(
			(found) => ({ default: found }),
			() => ({ default: instead }),
		),
	);
}

function Missing() {
	return (
		<p className="flex flex-wrap items-center gap-2 px-3 pb-2 text-small text-ink-2" role="status">
			This part of the page could not be fetched.
			<Button small onClick={() => location.reload()}>
				Reload
			</Button>
		</p>
	);
}

import type { Schemas } from "@signalbox/client";

/** What a tool's declaration says of its calls: what they change, and what becomes of one whose worker dies. */
export function effectWords(tool: Pick<Schemas["Tool"], "effect" | "acts_outside">): { changes: string; afterCrash: string } {
	const changes = tool.acts_outside
		? "Changes or sends something outside of Signalbox."
		: { pure: "Changes nothing.", same_tx: "Changes documents of this workspace.", keyed: "", verify: "", unsafe: "" }[tool.effect];
	const afterCrash = {
		pure: "Runs again.",
		same_tx: "Runs again, and takes effect once.",
		keyed: "Runs again with the same key, by which the other side takes it for one call.",
		verify: "Signalbox looks up whether it happened, and then decides.",
		unsafe: "Is not repeated: you are asked whether it happened.",
	}[tool.effect];
	return { changes, afterCrash };
}

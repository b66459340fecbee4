import { errorOf } from "./conversation.ts";

/** What a failed tool call means for a person. */
export interface Failure {
	/** What happened: a sentence. */
	title: string;
	/** More of it, and what follows; may be empty. */
	text: string;
	/** Where a person does something about it, what the link says, and who may. */
	remedy?: { to: "connections" | "accounts"; label: string; owners: boolean };
}

const wentOn = "The agent went on without it.";

/** The errors of tool-executor about which a person can do something, by their words. */
const known: [RegExp, (m: string[]) => Failure][] = [
	[
		/^(.+?) is not connected(?::| \().*$/s,
		([, name]) => ({ title: `${name} is not connected.`, text: wentOn, remedy: connects(`Connect ${name}`) }),
	],
	[
		/^(.+?) has to be connected again: (.*?)(?: \(a person can connect it at .*\))?$/s,
		([, name, why]) => ({
			title: `${name} has to be connected again.`,
			text: `${sentence(why)} ${wentOn}`,
			remedy: connects(`Connect ${name} again`),
		}),
	],
	[
		/^(.+?) no longer accepts the connection(?:: (.*?))?; a person connects it again at .*$/s,
		([, name, why]) => ({
			title: `${name} no longer accepts our sign-in.`,
			text: why ? `${sentence(why)} ${wentOn}` : wentOn,
			remedy: connects(`Connect ${name} again`),
		}),
	],
	[
		/^an owner has disabled the connection to (.+)$/s,
		([, name]) => ({
			title: `An owner has disabled the connection to ${name}.`,
			text: wentOn,
			remedy: { to: "accounts", label: "See accounts", owners: true },
		}),
	],
	[
		/^(.+? takes no more requests for now)(.*)$/s,
		([, what, more]) => ({
			title: `${what}.`,
			text: more ? sentence(more.replace(/^[:;] /, "")) : "",
			remedy: { to: "accounts", label: "See accounts", owners: true },
		}),
	],
	[
		/^the MCP server (\S+) refuses the call: (.*sign in to it.*?); do without it$/s,
		([, name, why]) => ({
			title: `The MCP server ${name} wants a sign-in.`,
			text: `${sentence(why)} ${wentOn}`,
			remedy: { to: "connections", label: `Sign in to ${name}`, owners: true },
		}),
	],
	[
		/^the MCP server (\S+) (cannot be used: .*?|has changed this tool's definition since .*?)(?:; do without it)?$/s,
		([, name, why]) => ({ title: sentence(`The MCP server ${name} ${why}`), text: wentOn, remedy: connects("See MCP servers") }),
	],
];

/** Says what a call's error means; undefined if its result is none. */
export function failureOf(result: unknown): Failure | undefined {
	const said = errorOf(result);
	if (!said) return undefined;
	const reason = /^\S+ cannot be used: (.*)$/s.exec(said)?.[1]; // of a tool that was not tried
	for (const [pattern, failure] of known) {
		const m = pattern.exec(reason ?? said);
		if (m) return failure(m);
	}
	if (reason === undefined) return { title: "It failed.", text: said };
	return { title: "It cannot be used.", text: `${sentence(reason)} ${wentOn}` };
}

const connects = (label: string) => ({ to: "connections" as const, label, owners: false });

/** A text with a capital at its beginning and a stop at its end. */
function sentence(text = ""): string {
	const said = text.trim();
	return said.charAt(0).toUpperCase() + said.slice(1) + (/[.!?…]$/.test(said) ? "" : ".");
}

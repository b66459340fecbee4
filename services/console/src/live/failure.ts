import { providerName, sentence } from "../words.ts";
import { causeOf, errorOf } from "./conversation.ts";

/** What a person does about a failed call. */
export type Remedy =
	| { does: "connect"; provider: string; again: boolean; label: string }
	/** Opens an MCP server; some of what is done there is for owners. */
	| { does: "server"; server: string; label: string; owners: boolean }
	| { does: "accounts"; label: string };

/** What a failed tool call means for a person. */
export interface Failure {
	/** What happened: a sentence. */
	title: string;
	/** More of it, and what follows; may be empty. */
	text: string;
	remedy?: Remedy;
}

/** Says what a call's error means; undefined if its result is none. An error without a known code is shown as it is. */
export function failureOf(result: unknown): Failure | undefined {
	const said = errorOf(result);
	const { code = "", service = "", server = "", reason = "" } = causeOf(result);
	const name = providerName(service);
	const text = [sentence(reason), "The agent went on without it."].filter(Boolean).join(" ");
	const accounts = { does: "accounts", label: "See accounts" } as const;
	const connect = (again: boolean) =>
		({ does: "connect", provider: service, again, label: `Connect ${name}${again ? " again" : ""}` }) as const;
	const open = (label: string, owners = false) => ({ does: "server", server, label, owners }) as const;
	switch (code) {
		case "NOT_CONNECTED":
			return { title: `${name} is not connected.`, text, remedy: connect(false) };
		case "CONNECTION_REFUSED":
			return { title: `${name} no longer accepts our sign-in.`, text, remedy: connect(true) };
		case "CONNECTION_DISABLED":
			return { title: `An owner has disabled the connection to ${name}.`, text, remedy: accounts };
		case "RATE_LIMITED":
			return { title: `${name} takes no more requests for now.`, text: sentence(reason), remedy: accounts };
		case "NEEDS_SIGN_IN":
			return { title: `The MCP server ${server} wants a sign-in.`, text, remedy: open(`Sign in to ${server}`, true) };
		case "SERVER_UNAVAILABLE":
			return { title: `The MCP server ${server} cannot be used.`, text, remedy: open(`Open ${server}`) };
		case "DEFINITION_CHANGED":
			return {
				title: `The MCP server ${server} has changed this tool.`,
				text: `It cannot be used until somebody has approved what it says now. ${text}`,
				remedy: open(`Open ${server}`),
			};
		case "UNAVAILABLE":
			return { title: "It cannot be used.", text };
	}
	return said ? { title: "It failed.", text: said } : undefined;
}

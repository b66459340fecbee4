import { ChartColumn, ChartNoAxesGantt, KeyRound, type LucideIcon, Plug, Users } from "lucide-react";
import type { Workspace } from "./client.ts";

/** A page of the workspace that its operation or administration needs, and who may see it. */
interface Place {
	to: "/w/$slug/runs" | "/w/$slug/accounts" | "/w/$slug/connections" | "/w/$slug/usage" | "/w/$slug/members";
	text: string;
	icon: LucideIcon;
	roles: readonly Workspace["role"][];
	/** It stands among the places of work, not at the foot. */
	work?: true;
	/** Other pages at which this one is where one is. */
	also?: readonly string[];
}

const everybody = ["owner", "editor", "viewer"] as const;

/** The places of the navigation that a phone has behind "More". */
export const places: readonly Place[] = [
	{ to: "/w/$slug/runs", text: "Runs", icon: ChartNoAxesGantt, roles: everybody, work: true },
	{ to: "/w/$slug/accounts", text: "Accounts", icon: KeyRound, roles: ["owner"] },
	{ to: "/w/$slug/connections", text: "Connections", icon: Plug, roles: ["owner", "editor"] },
	{ to: "/w/$slug/usage", text: "Usage", icon: ChartColumn, roles: everybody },
	{ to: "/w/$slug/members", text: "Workspace", icon: Users, roles: everybody, also: ["keys", "rules", "audit"] },
];

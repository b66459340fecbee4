import { useNavigate } from "@tanstack/react-router";
import { useRef, useState } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import type { Remedy as What } from "../live/failure.ts";
import { usePeople } from "../people.ts";
import { Connect, useConnections } from "./Connect.tsx";
import { Button } from "./controls.tsx";
import { ServerDialog, useServers } from "./Server.tsx";

/** The button for what a person does about a failed call; nothing for those who may not, and once it is done. */
export function Remedy({ of }: { of: What }) {
	const { role } = useWorkspace().workspace;
	if (role === "viewer") return null;
	switch (of.does) {
		case "connect":
			return <ConnectButton of={of} />;
		case "server":
			return of.owners && role !== "owner" ? null : <ServerButton of={of} />;
		case "accounts":
			return role === "owner" ? <AccountsButton label={of.label} /> : null;
	}
}

function ConnectButton({ of: { provider, again, label } }: { of: Extract<What, { does: "connect" }> }) {
	const { workspace } = useWorkspace();
	const { me } = usePeople();
	const [open, setOpen] = useState(false);
	const connection = useConnections().data?.find((c) => c.provider === provider);
	const before = useRef(connection);
	before.current ??= connection;
	if (!connection) return null;
	// A service may refuse a connection before the connection says so itself.
	if (connection.state === "connected" && !(again && connection.connected_at === before.current?.connected_at))
		return <p className="mt-1">{connection.title} is connected now.</p>;
	// A connection is changed by the member who made it, and by owners.
	const may = !connection.connected_by || connection.connected_by === me || workspace.role === "owner";
	if (!may || connection.state === "disabled" || connection.state === "not_configured") return null;
	return (
		<>
			<p className="mt-2">
				<Button small look="primary" onClick={() => setOpen(true)}>
					{label}
				</Button>
			</p>
			{open && <Connect connection={connection} onClose={() => setOpen(false)} />}
		</>
	);
}

function ServerButton({ of: { server: name, owners, label } }: { of: Extract<What, { does: "server" }> }) {
	const [open, setOpen] = useState(false);
	const server = useServers().data?.find((s) => s.name === name);
	if (!server) return null;
	return (
		<>
			{(server.needs_sign_in || !owners) && (
				<p className="mt-2">
					<Button small look={owners ? "primary" : "plain"} onClick={() => setOpen(true)}>
						{label}
					</Button>
				</p>
			)}
			{open && <ServerDialog server={server} onClose={() => setOpen(false)} />}
		</>
	);
}

function AccountsButton({ label }: { label: string }) {
	const { workspace } = useWorkspace();
	const navigate = useNavigate();
	return (
		<p className="mt-2">
			<Button small onClick={() => void navigate({ to: "/w/$slug/accounts", params: { slug: slugOf(workspace) } })}>
				{label}
			</Button>
		</p>
	);
}

import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import type { Remedy as What } from "../live/failure.ts";
import { usePeople } from "../people.ts";
import { Connect, type Connection, useConnections } from "./Connect.tsx";
import { Button } from "./controls.tsx";
import { ServerDialog, useServers } from "./Server.tsx";

/** The button for what a person does about a call that failed at a time, in ms; nothing for those who may not, and once it is done. */
export function Remedy({ of, at }: { of: What; at: number | undefined }) {
	const { role } = useWorkspace().workspace;
	if (role === "viewer") return null;
	switch (of.does) {
		case "connect":
			return <ConnectButton of={of} at={at} />;
		case "server":
			return of.owners && role !== "owner" ? null : <ServerButton of={of} />;
		case "accounts":
			return role === "owner" ? <AccountsButton label={of.label} /> : null;
	}
}

function ConnectButton({ of: { provider, again, label }, at }: { of: Extract<What, { does: "connect" }>; at: number | undefined }) {
	const { workspace } = useWorkspace();
	const { me } = usePeople();
	/** The connection as it was when the button was pressed, while its dialog is open. */
	const [pressed, setPressed] = useState<Connection>();
	const [doneHere, setDoneHere] = useState(false);
	const connection = useConnections().data?.find((c) => c.provider === provider);
	if (!connection) return null;
	// A service may refuse a connection before the connection says so itself.
	const renewed = Date.parse(connection.connected_at ?? "") > (at ?? Number.POSITIVE_INFINITY);
	const connected = connection.state === "connected" && (!again || renewed);
	// A connection is changed by the member who made it, and by owners.
	const may = !connection.connected_by || connection.connected_by === me || workspace.role === "owner";
	const offered = may && !connected && connection.state !== "disabled" && connection.state !== "not_configured";
	return (
		<>
			{connected && !pressed && (
				<p className="mt-1" tabIndex={-1} ref={doneHere ? focus : null}>
					{connection.title} is connected now.
				</p>
			)}
			{(offered || pressed) && (
				<p className="mt-2">
					<Button small look="primary" onClick={() => setPressed(connection)}>
						{label}
					</Button>
				</p>
			)}
			{pressed && (
				<Connect
					connection={pressed}
					onClose={() => {
						setDoneHere(connected); // the button, which had the focus, is gone then
						setPressed(undefined);
					}}
				/>
			)}
		</>
	);
}

const focus = (e: HTMLElement | null) => e?.focus();

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

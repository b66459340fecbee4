import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { KeyRound, Plus } from "lucide-react";
import { type FormEvent, useRef, useState } from "react";
import { allPages, everywhere, unwrap, useWorkspace } from "../client.ts";
import { newKey } from "../insecure.ts";
import { CopyButton } from "../parts/CopyButton.tsx";
import { Blank, Button, Notice, Tag } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { Field, Loaded, Page, pageCss, Refused, Table, WorkspaceTabs } from "../parts/page.tsx";
import { usePeople } from "../people.ts";
import { signOut } from "../signout.ts";
import { ago } from "../words.ts";

type Key = Schemas["Key"];

const may: Record<Key["role"], string> = {
	owner: "everything an owner may, except what asks for a person",
	editor: "chat and write, as an editor",
	viewer: "read, as a viewer",
};

/** The workspace's API keys, for owners, and the browsers in which this person is signed in. */
export function KeysPage() {
	const { workspace } = useWorkspace();
	const owner = workspace.role === "owner";
	const [adding, setAdding] = useState(false);
	return (
		<Page
			title={workspace.name}
			actions={
				owner && (
					<Button look="primary" icon={Plus} onClick={() => setAdding(true)}>
						New key
					</Button>
				)
			}
		>
			<WorkspaceTabs />
			{owner && <Keys adding={adding} onClose={() => setAdding(false)} />}
			<Browsers />
		</Page>
	);
}

function Keys({ adding, onClose }: { adding: boolean; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const { nameOf } = usePeople();
	const [made, setMade] = useState<Schemas["KeyOutputBody"]>();
	const [revoking, setRevoking] = useState<Key>();
	const keys = useQuery({
		queryKey: [workspace.id, "keys"],
		queryFn: ({ signal }) =>
			allPages(signal, (query, signal) => unwrap(client.api.GET("/api/keys", { params: { query }, signal }))).then((pages) =>
				pages.flatMap((p) => p.keys as Key[]),
			),
	});
	const refresh = () => queries.invalidateQueries({ queryKey: [workspace.id, "keys"] });
	return (
		<section>
			<h2 className="sr">API keys</h2>
			{made && (
				<div className="mb-5" role="status">
					<Notice tone="live" icon={KeyRound}>
						<b className="font-bold">Copy this key now.</b> It is stored as a hash and cannot be shown again.
						<div className={`${pageCss.secret} mt-2`}>
							<code>{made.secret}</code>
							<CopyButton text={made.secret} look="primary" />
							<Button look="quiet" small onClick={() => setMade(undefined)}>
								I have it
							</Button>
						</div>
					</Notice>
				</div>
			)}
			<Loaded query={keys}>
				{(all) =>
					all.length === 0 ? (
						<Blank line="open" title="No API key yet">
							Programs use one to call the API in this workspace’s name.
						</Blank>
					) : (
						<Table label="API keys" head={["Name", "May", ["Made by", "wide"], ["Made", "wide"], ["Revoke", "sr"]]}>
							{all.map((k) => (
								<tr key={k.id}>
									<td>
										<span className={pageCss.pair}>
											<span className="font-mid">{k.name}</span>
											<code>{k.hint}…</code>
										</span>
									</td>
									<td className="text-small text-ink-2">{may[k.role]}</td>
									<td className={`${pageCss.wide} text-small text-ink-2`}>{nameOf(k.created_by)}</td>
									<td className={`${pageCss.wide} n text-small text-ink-2`}>{ago(k.created_at)}</td>
									<td data-right>
										<Button look="danger" small onClick={() => setRevoking(k)}>
											Revoke<span className="sr"> {k.name}</span>
										</Button>
									</td>
								</tr>
							))}
						</Table>
					)
				}
			</Loaded>
			<h2 className="mt-8 mb-2 text-h3 font-bold">Use it</h2>
			<pre className={pageCss.code} tabIndex={0} role="region" aria-label="Example with curl">
				{`curl ${location.origin}/api/sessions \\
  -H "Authorization: Bearer $SIGNALBOX_KEY"`}
			</pre>
			{adding && (
				<NewKey
					onClose={onClose}
					onMade={(k) => {
						setMade(k);
						onClose();
						void refresh();
					}}
				/>
			)}
			{revoking && (
				<Confirm
					title={`Revoke “${revoking.name}”?`}
					action="Revoke"
					onClose={() => setRevoking(undefined)}
					onConfirm={async () => {
						await unwrap(client.api.DELETE("/api/keys/{id}", { params: { path: { id: revoking.id } } }));
						if (made?.key.id === revoking.id) setMade(undefined);
						await refresh();
					}}
				>
					Programs that use it are refused from now on. It cannot be brought back; a new key can be made.
				</Confirm>
			)}
		</section>
	);
}

function NewKey({ onClose, onMade }: { onClose: () => void; onMade: (k: Schemas["KeyOutputBody"]) => void }) {
	const { client } = useWorkspace();
	const [name, setName] = useState("");
	const [role, setRole] = useState<Key["role"]>("editor");
	const [problem, setProblem] = useState("");
	// One key for the dialog: a second try after a lost answer makes no second API key.
	const idempotency = useRef(newKey());
	const make = useMutation({
		mutationFn: () =>
			unwrap(
				client.api.POST("/api/keys", { params: { header: { "Idempotency-Key": idempotency.current } }, body: { name: name.trim(), role } }),
			),
		onSuccess: onMade,
		onError: () => (idempotency.current = newKey()),
	});
	const submit = (e: FormEvent) => {
		e.preventDefault();
		setProblem(name.trim() ? "" : "Name the program that will use it, to know later what stops when you revoke it.");
		if (name.trim()) make.mutate();
	};
	return (
		<Dialog
			title="New API key"
			onClose={onClose}
			footer={
				<>
					<Button onClick={onClose}>Cancel</Button>
					<Button type="submit" form="new-key" look="primary" busy={make.isPending}>
						Make key
					</Button>
				</>
			}
		>
			<form id="new-key" className="grid gap-4" onSubmit={submit} noValidate>
				<Field label="Name" problem={problem} hint="What will use it, such as “reporting job”.">
					{(c) => <input {...c} value={name} onChange={(e) => setName(e.target.value)} maxLength={200} autoComplete="off" />}
				</Field>
				<Field label="It may" hint="It acts for you, and ends with your membership.">
					{(c) => (
						<select {...c} value={role} onChange={(e) => setRole(e.target.value as Key["role"])}>
							{Object.entries(may).map(([value, text]) => (
								<option key={value} value={value}>
									{text}
								</option>
							))}
						</select>
					)}
				</Field>
				<Refused error={make.error} />
			</form>
		</Dialog>
	);
}

function Browsers() {
	const queries = useQueryClient();
	const [ending, setEnding] = useState<Schemas["BrowserSession"]>();
	const sessions = useQuery({
		queryKey: ["browser-sessions"],
		queryFn: () => unwrap(everywhere.api.GET("/api/browser-sessions")).then((b) => b.sessions),
	});
	return (
		<section className="mt-8">
			<h2 className="text-h3 font-bold">Your browsers</h2>
			<p className="mb-3 text-small text-ink-2">Where you are signed in. End one that you do not know.</p>
			<Loaded query={sessions}>
				{(all) =>
					all.length === 0 ? (
						<p className="text-ink-2">You are signed in with a token, in no browser.</p>
					) : (
						<Table label="Your browsers" head={["Browser", ["Signed in", "wide"], "Last used", ["End", "sr"]]}>
							{all.map((s) => (
								<tr key={s.id}>
									<td>
										<span className="flex flex-wrap items-center gap-2">
											<span className="font-mid" title={s.browser}>
												{browserName(s.browser)}
											</span>
											{s.current && (
												<Tag tone="live" signal="done">
													This one
												</Tag>
											)}
										</span>
									</td>
									<td className={`${pageCss.wide} n text-small text-ink-2`}>{ago(s.created_at)}</td>
									<td className="n text-small text-ink-2">{ago(s.seen_at)}</td>
									<td data-right>
										<Button look="danger" small onClick={() => setEnding(s)}>
											{s.current ? "Sign out" : "End"}
											<span className="sr">{s.current ? "" : ` ${browserName(s.browser)}, signed in ${ago(s.created_at)}`}</span>
										</Button>
									</td>
								</tr>
							))}
						</Table>
					)
				}
			</Loaded>
			{ending && (
				<Confirm
					title={ending.current ? "Sign out here?" : `End ${browserName(ending.browser)}?`}
					action={ending.current ? "Sign out" : "End"}
					keep={ending.current ? "Stay" : "Keep"}
					onClose={() => setEnding(undefined)}
					onConfirm={async () => {
						if (ending.current) return signOut();
						await unwrap(everywhere.api.DELETE("/api/browser-sessions/{id}", { params: { path: { id: ending.id } } }));
						await queries.invalidateQueries({ queryKey: ["browser-sessions"] });
					}}
				>
					Its pages stop at once. What was written there and not sent stays in that browser.
				</Confirm>
			)}
		</section>
	);
}

/** A browser and its system, as people call them, from what it says of itself. */
export function browserName(agent: string): string {
	const name = /Edg\//.test(agent)
		? "Edge"
		: /Firefox\//.test(agent)
			? "Firefox"
			: /HeadlessChrome|Chrome\//.test(agent)
				? "Chrome"
				: /Safari\//.test(agent)
					? "Safari"
					: agent.split(/[/ ]/, 1)[0] || "A browser";
	const system = /iPhone|iPad/.test(agent)
		? "iOS"
		: /Android/.test(agent)
			? "Android"
			: /Mac OS X/.test(agent)
				? "macOS"
				: /Windows/.test(agent)
					? "Windows"
					: /Linux/.test(agent)
						? "Linux"
						: "";
	return system ? `${name} on ${system}` : name;
}

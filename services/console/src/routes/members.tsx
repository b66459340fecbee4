import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Plus, UserMinus } from "lucide-react";
import { type FormEvent, useState } from "react";
import { everywhere, unwrap, useWorkspace } from "../client.ts";
import { CopyButton } from "../parts/CopyButton.tsx";
import { Button, Face, IconButton } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { Field, Loaded, Page, pageCss, Refused, Table, WorkspaceTabs } from "../parts/page.tsx";
import { usePeople } from "../people.ts";
import { ago, money } from "../words.ts";
import css from "./members.module.css";

type Role = Schemas["Member"]["role"];

/** What each role may do, as it is said to people. */
const roles: Record<Role, [name: string, may: string]> = {
	owner: ["Owner", "Everything, with accounts, budgets and members."],
	editor: ["Editor", "Chats, writes, approves calls, connects tools."],
	viewer: ["Viewer", "Reads and watches live. Starts nothing, spends nothing."],
};

/** Who is in the workspace, and what they may do. */
export function MembersPage() {
	const { client, workspace } = useWorkspace();
	const { members, me, nameOf } = usePeople();
	const queries = useQueryClient();
	const owner = workspace.role === "owner";
	const [adding, setAdding] = useState(false);
	const [removing, setRemoving] = useState<Schemas["Member"]>();
	const spent = useQuery({
		queryKey: [workspace.id, "usage", "member"],
		queryFn: () => unwrap(client.api.GET("/api/usage", { params: { query: { by: "member" } } })).then((b) => b.usage),
		enabled: owner,
	});
	const refresh = () => queries.invalidateQueries({ queryKey: [workspace.id, "members"] });
	const change = useMutation({
		mutationFn: ({ id, role }: { id: string; role: Role }) =>
			unwrap(
				client.api.PATCH("/api/workspaces/{id}/members/{member_id}", {
					params: { path: { id: workspace.id, member_id: id } },
					body: { role },
				}),
			),
		onSuccess: (_, { id }) => {
			if (id === me) void queries.invalidateQueries({ queryKey: ["workspaces"] }).then(() => location.reload());
			return refresh();
		},
	});
	return (
		<Page
			title={workspace.name}
			actions={
				owner && (
					<Button look="primary" icon={Plus} onClick={() => setAdding(true)}>
						Add member
					</Button>
				)
			}
		>
			<WorkspaceTabs />
			<Refused error={change.error} />
			<Loaded query={members}>
				{(all) => (
					<Table
						label="Members"
						head={[
							"Member",
							"Role",
							["Member since", "wide"],
							...(owner ? ([["30 days", "right"]] as [string, "right"][]) : []),
							["Remove", "sr"],
						]}
					>
						{all.map((m) => (
							<tr key={m.member_id}>
								<td>
									<div className="flex items-center gap-3">
										<Face name={nameOf(m.member_id)} id={m.member_id} />
										<div className={pageCss.pair}>
											<span className="font-mid">{nameOf(m.member_id)}</span>
											{m.email ? <span className={css.id}>{m.email}</span> : <code className={css.id}>{m.member_id}</code>}
										</div>
									</div>
								</td>
								<td>
									{owner ? (
										<select
											className={pageCss.pick}
											aria-label={`Role of ${nameOf(m.member_id)}`}
											value={m.role}
											disabled={change.isPending}
											onChange={(e) => change.mutate({ id: m.member_id, role: e.target.value as Role })}
										>
											{Object.entries(roles).map(([role, [name]]) => (
												<option key={role} value={role}>
													{name}
												</option>
											))}
										</select>
									) : (
										roles[m.role][0]
									)}
								</td>
								<td className={`${pageCss.wide} text-small text-ink-2`}>{ago(m.created_at)}</td>
								{owner && (
									<td className="n" data-right>
										{spent.data ? money(spent.data.find((u) => u.key === m.member_id)?.cost_micros ?? 0) : ""}
									</td>
								)}
								<td data-right>
									{(owner || m.member_id === me) && (
										<IconButton
											icon={UserMinus}
											label={m.member_id === me ? "Leave the workspace" : `Remove ${nameOf(m.member_id)}`}
											onClick={() => setRemoving(m)}
										/>
									)}
								</td>
							</tr>
						))}
					</Table>
				)}
			</Loaded>
			{owner && <Invitations />}
			<dl className={css.roles}>
				{Object.values(roles).map(([name, may]) => (
					<div key={name}>
						<dt className="font-mid">{name}</dt>
						<dd>{may}</dd>
					</div>
				))}
			</dl>
			{adding && <Add onClose={() => setAdding(false)} me={me} />}
			{removing && (
				<Confirm
					title={removing.member_id === me ? `Leave ${workspace.name}?` : `Remove ${nameOf(removing.member_id)}?`}
					action={removing.member_id === me ? "Leave" : "Remove"}
					keep={removing.member_id === me ? "Stay" : "Keep"}
					onClose={() => setRemoving(undefined)}
					onConfirm={async () => {
						await unwrap(
							client.api.DELETE("/api/workspaces/{id}/members/{member_id}", {
								params: { path: { id: workspace.id, member_id: removing.member_id } },
							}),
						);
						if (removing.member_id === me) return location.assign("/");
						return refresh();
					}}
				>
					{removing.member_id === me ? "You lose access at once; your" : "They lose access at once; their"} API keys are revoked, and what
					they have running is stopped. Sessions and documents stay.
				</Confirm>
			)}
		</Page>
	);
}

/** Who has been invited, and has not signed in yet. */
function Invitations() {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const path = { id: workspace.id };
	const open = useQuery({
		queryKey: [workspace.id, "invitations"],
		queryFn: () => unwrap(client.api.GET("/api/workspaces/{id}/invitations", { params: { path } })).then((b) => b.invitations),
	});
	const withdraw = useMutation({
		mutationFn: (email: string) =>
			unwrap(client.api.DELETE("/api/workspaces/{id}/invitations/{email}", { params: { path: { ...path, email } } })),
		onSettled: () => queries.invalidateQueries({ queryKey: [workspace.id, "invitations"] }),
	});
	if (!open.data?.length) return <Refused error={open.error} />;
	return (
		<section className="mt-8">
			<h2 className="mb-2 font-bold">Invited</h2>
			<Refused error={withdraw.error} />
			<Table label="Invited" head={["E-mail address", "Role", ["Until", "wide"], ["Withdraw", "sr"]]}>
				{open.data.map((i) => (
					<tr key={i.email}>
						<td>{i.email}</td>
						<td>{roles[i.role][0]}</td>
						<td className={`${pageCss.wide} text-small text-ink-2`}>{new Date(i.expires_at).toLocaleDateString()}</td>
						<td data-right>
							<IconButton icon={UserMinus} label={`Withdraw the invitation of ${i.email}`} onClick={() => withdraw.mutate(i.email)} />
						</td>
					</tr>
				))}
			</Table>
		</section>
	);
}

const address = /^[^\s@]+@[^\s@]+\.[^\s@]+$/;
const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

function Add({ onClose, me }: { onClose: () => void; me: string | undefined }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const [id, setId] = useState("");
	const [role, setRole] = useState<Role>("editor");
	const [problem, setProblem] = useState("");
	const company = useQuery({
		queryKey: ["sign-in"],
		queryFn: () => unwrap(everywhere.api.GET("/api/sign-in")).then((b) => b.company),
	}).data;
	const whom = id.trim().toLowerCase();
	const invites = Boolean(company) && address.test(whom);
	const add = useMutation({
		mutationFn: async () => {
			const params = { path: { id: workspace.id } };
			if (invites) await unwrap(client.api.POST("/api/workspaces/{id}/invitations", { params, body: { email: whom, role } }));
			else await unwrap(client.api.POST("/api/workspaces/{id}/members", { params, body: { member_id: whom, role } }));
		},
		onSuccess: async () => {
			await queries.invalidateQueries({ queryKey: [workspace.id, invites ? "invitations" : "members"] });
			onClose();
		},
	});
	const submit = (e: FormEvent) => {
		e.preventDefault();
		const wrong = !whom
			? company
				? "Who is it? Give an e-mail address, or the id of the person."
				: "Paste the id of the person."
			: !uuid.test(whom) && !invites
				? company
					? "This is neither an e-mail address nor an id."
					: "This is not an id. An id has 32 digits in five groups, such as 0198a000-0000-7000-8000-000000000001."
				: whom === me
					? "This is your own id. You are a member already."
					: "";
		setProblem(wrong);
		if (!wrong) add.mutate();
	};
	return (
		<Dialog
			title="Add a member"
			onClose={onClose}
			footer={
				<>
					<Button onClick={onClose}>Cancel</Button>
					<Button type="submit" form="add-member" look="primary" busy={add.isPending}>
						{invites ? "Invite" : "Add"}
					</Button>
				</>
			}
		>
			<form id="add-member" className="grid gap-4" onSubmit={submit} noValidate>
				<Field
					label={company ? "E-mail address, or id of the person" : "Id of the person"}
					problem={problem}
					hint={
						company
							? `Who signs in with ${company.name} and this address joins. No e-mail is sent: tell them.`
							: "The sub claim of their access token. Who is signed in finds it here, in any workspace."
					}
				>
					{(c) => <input {...c} value={id} onChange={(e) => setId(e.target.value)} autoComplete="off" spellCheck={false} maxLength={254} />}
				</Field>
				<fieldset className={css.pick}>
					<legend className="font-mid">Role</legend>
					{Object.entries(roles).map(([value, [name, may]]) => (
						<label key={value}>
							<input type="radio" name="role" value={value} checked={role === value} onChange={() => setRole(value as Role)} />
							<span className={pageCss.pair}>
								<span className="font-mid">{name}</span>
								<span>{may}</span>
							</span>
						</label>
					))}
				</fieldset>
				{me && (
					<p className="flex items-center gap-2 text-small text-ink-3">
						<span className="flex-1">To be added elsewhere, send your own id.</span>
						<CopyButton text={me} look="quiet">
							Copy my id
						</CopyButton>
					</p>
				)}
				<Refused error={add.error} />
			</form>
		</Dialog>
	);
}

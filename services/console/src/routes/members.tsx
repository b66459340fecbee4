import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Plus, UserMinus } from "lucide-react";
import { type FormEvent, useState } from "react";
import { unwrap, useWorkspace } from "../client.ts";
import { Button, Face, IconButton } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { CopyButton, Field, Loaded, Page, pageCss, Refused, Table, WorkspaceTabs } from "../parts/page.tsx";
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
											<code className={css.id}>{m.member_id}</code>
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

const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

function Add({ onClose, me }: { onClose: () => void; me: string | undefined }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const [id, setId] = useState("");
	const [role, setRole] = useState<Role>("editor");
	const [problem, setProblem] = useState("");
	const add = useMutation({
		mutationFn: () =>
			unwrap(
				client.api.POST("/api/workspaces/{id}/members", {
					params: { path: { id: workspace.id } },
					body: { member_id: id.trim().toLowerCase(), role },
				}),
			),
		onSuccess: async () => {
			await queries.invalidateQueries({ queryKey: [workspace.id, "members"] });
			onClose();
		},
	});
	const submit = (e: FormEvent) => {
		e.preventDefault();
		const wrong = !id.trim()
			? "Paste the id of the person."
			: !uuid.test(id.trim())
				? "This is not an id. An id has 32 digits in five groups, such as 0198a000-0000-7000-8000-000000000001."
				: id.trim().toLowerCase() === me
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
						Add
					</Button>
				</>
			}
		>
			<form id="add-member" className="grid gap-4" onSubmit={submit} noValidate>
				<Field
					label="Id of the person"
					problem={problem}
					hint="The sub claim of their access token. Who is signed in finds it here, in any workspace."
				>
					{(c) => <input {...c} value={id} onChange={(e) => setId(e.target.value)} autoComplete="off" spellCheck={false} maxLength={64} />}
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

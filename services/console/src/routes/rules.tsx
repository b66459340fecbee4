import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { useState } from "react";
import { allPages, slugOf, unwrap, useWorkspace } from "../client.ts";
import { Blank, Button, Tag } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { Field, Loaded, Page, pageCss, Refused, Table, WorkspaceTabs } from "../parts/page.tsx";
import { usePeople } from "../people.ts";
import { useTools } from "../tools.ts";
import { ago, toolWords } from "../words.ts";

type Rule = Schemas["ApprovalRule"];

const effects: Record<Rule["effect"], [text: string, tone: "live" | "stop" | "wait", signal: "done" | "stopped" | "waiting"]> = {
	allow: ["Nobody is asked", "live", "done"],
	deny: ["Refused", "stop", "stopped"],
	ask: ["A person is asked", "wait", "waiting"],
};

/** The answers that are remembered, so that nobody is asked again. */
export function RulesPage() {
	const { client, workspace } = useWorkspace();
	const { nameOf } = usePeople();
	const queries = useQueryClient();
	const [deleting, setDeleting] = useState<Rule>();
	const [adding, setAdding] = useState(false);
	const rules = useQuery({
		queryKey: [workspace.id, "rules"],
		queryFn: ({ signal }) =>
			allPages(signal, (query, signal) => unwrap(client.api.GET("/api/approval-rules", { params: { query }, signal }))).then((pages) =>
				pages.flatMap((p) => p.rules as Rule[]),
			),
	});
	const slug = slugOf(workspace);
	// Rules of the whole workspace are for owners, those of a session for editors.
	const may = (r: Rule) => workspace.role === "owner" || (workspace.role === "editor" && r.session_id !== null);
	return (
		<Page
			title={workspace.name}
			actions={
				workspace.role === "owner" && (
					<Button look="primary" icon={Plus} onClick={() => setAdding(true)}>
						New rule
					</Button>
				)
			}
		>
			<WorkspaceTabs />
			<Loaded query={rules}>
				{(all) =>
					all.length === 0 ? (
						<Blank line="open" title="No rule yet">
							When you answer an agent’s question with “Don’t ask again”, the answer is remembered here.
						</Blank>
					) : (
						<Table label="Approval rules" head={["Tool", "What happens", "Where", ["Set by", "wide"], ["Delete", "sr"]]}>
							{all.map((r) => {
								const [text, tone, signal] = effects[r.effect];
								return (
									<tr key={r.id}>
										<td>
											<span className={pageCss.pair}>
												<span className="font-mid">{toolWords(r.tool)}</span>
												<span className="cut max-w-80" title={r.args === null ? "" : JSON.stringify(r.args)}>
													{r.args === null ? "with any arguments" : `with ${JSON.stringify(r.args)}`}
												</span>
											</span>
										</td>
										<td>
											<Tag tone={tone} signal={signal}>
												{text}
											</Tag>
										</td>
										<td className="text-small">
											{r.session_id ? (
												<Link to="/w/$slug/s/$id" params={{ slug, id: r.session_id }}>
													one session
												</Link>
											) : (
												"everywhere"
											)}
										</td>
										<td className={`${pageCss.wide} text-small text-ink-2`}>
											{nameOf(r.created_by)}, {ago(r.created_at)}
										</td>
										<td data-right>
											{may(r) && (
												<Button look="danger" small onClick={() => setDeleting(r)}>
													Delete<span className="sr"> the rule for {toolWords(r.tool)}</span>
												</Button>
											)}
										</td>
									</tr>
								);
							})}
						</Table>
					)
				}
			</Loaded>
			{adding && <NewRule onClose={() => setAdding(false)} />}
			{deleting && (
				<Confirm
					title={`Delete the rule for ${toolWords(deleting.tool)}?`}
					action="Delete"
					onClose={() => setDeleting(undefined)}
					onConfirm={async () => {
						await unwrap(client.api.DELETE("/api/approval-rules/{id}", { params: { path: { id: deleting.id } } }));
						await queries.invalidateQueries({ queryKey: [workspace.id, "rules"] });
					}}
				>
					From now on the tool’s own rule holds: {deleting.effect === "ask" ? "some tools run without a question." : "it may ask again."}
				</Confirm>
			)}
		</Page>
	);
}

function NewRule({ onClose }: { onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const tools = useTools();
	const [tool, setTool] = useState("");
	const [effect, setEffect] = useState<Rule["effect"]>("ask");
	const [problem, setProblem] = useState("");
	const add = useMutation({
		mutationFn: () => unwrap(client.api.POST("/api/approval-rules", { body: { tool, effect } })),
		onSuccess: async () => {
			await queries.invalidateQueries({ queryKey: [workspace.id, "rules"] });
			onClose();
		},
	});
	return (
		<Dialog
			title="New rule for the workspace"
			onClose={onClose}
			footer={
				<>
					<Button onClick={onClose}>Cancel</Button>
					<Button type="submit" form="new-rule" look="primary" busy={add.isPending}>
						Set rule
					</Button>
				</>
			}
		>
			<form
				id="new-rule"
				className="grid gap-4"
				noValidate
				onSubmit={(e) => {
					e.preventDefault();
					setProblem(tool ? "" : "Choose the tool that the rule is for.");
					if (tool) add.mutate();
				}}
			>
				<Field label="Tool" problem={problem}>
					{(c) => (
						<select {...c} value={tool} onChange={(e) => setTool(e.target.value)}>
							<option value="">Choose…</option>
							{tools.data?.map((t) => (
								<option key={t.name} value={t.name}>
									{toolWords(t.name)}
								</option>
							))}
						</select>
					)}
				</Field>
				<Field label="When an agent calls it" hint="In all sessions, whoever started them.">
					{(c) => (
						<select {...c} value={effect} onChange={(e) => setEffect(e.target.value as Rule["effect"])}>
							<option value="ask">a person is asked first</option>
							<option value="allow">nobody is asked</option>
							<option value="deny">it is refused</option>
						</select>
					)}
				</Field>
				<Refused error={add.error ?? tools.error} />
			</form>
		</Dialog>
	);
}

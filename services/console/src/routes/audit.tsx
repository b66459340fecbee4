import type { Schemas } from "@signalbox/client";
import { type InfiniteData, keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Download } from "lucide-react";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { saveCsv } from "../csv.ts";
import { Blank, Button, Face, Segments } from "../parts/controls.tsx";
import { Loaded, Page, pageCss, Refused, Table, WorkspaceTabs } from "../parts/page.tsx";
import { usePeople } from "../people.ts";
import { providerName, toolWords } from "../words.ts";

/** Who decided, and who touched credentials and MCP servers. Rows are never changed or deleted. */
export function AuditPage() {
	const { workspace } = useWorkspace();
	const navigate = useNavigate();
	const { log } = useSearch({ from: "/w/$slug/audit" });
	return (
		<Page title={workspace.name} access="owner">
			<WorkspaceTabs />
			<div className="mb-4">
				<Segments
					label="Log"
					value={log ?? "decisions"}
					options={[
						{ value: "decisions", text: "Decisions" },
						{ value: "credentials", text: "Credentials" },
						{ value: "mcp", text: "MCP servers" },
					]}
					onChange={(v) =>
						void navigate({ to: "/w/$slug/audit", params: { slug: slugOf(workspace) }, search: v === "decisions" ? {} : { log: v } })
					}
				/>
			</div>
			{log === "credentials" ? <Credentials /> : log === "mcp" ? <McpServers /> : <Decisions />}
		</Page>
	);
}

const decisions: Record<Schemas["Decision"]["action"], string> = {
	"call-approved": "approved",
	"call-refused": "refused",
	"call-expired": "Nobody answered in time:",
	"call-happened": "said that it happened:",
	"call-repeat": "had repeated",
	"rule-set": "set a rule for",
	"rule-deleted": "deleted a rule for",
	"budget-set": "set a budget",
	"budget-deleted": "deleted a budget",
	"member-invited": "invited",
	"invitation-withdrawn": "withdrew the invitation of",
	"member-joined": "joined as",
	"member-added": "added",
	"role-changed": "changed the role of",
	"member-removed": "removed",
	"key-created": "created the API key",
	"key-revoked": "revoked the API key",
	"browser-signed-out": "signed out another browser of theirs",
	"link-created": "created a link to",
	"link-revoked": "revoked a link to",
};

/** What a row is about, in words; the ids of rules and budgets say nothing to people. */
function useSubjects() {
	const { nameOf } = usePeople();
	const { workspace } = useWorkspace();
	return (r: Schemas["Decision"]): { subject: ReactNode; detail: string | undefined } => {
		const detail = r.detail ?? undefined;
		switch (r.action) {
			case "member-added":
			case "role-changed":
			case "member-removed":
				return { subject: nameOf(r.subject), detail };
			case "member-invited":
			case "invitation-withdrawn":
			case "member-joined":
				return { subject: r.subject, detail };
			case "key-created":
			case "key-revoked":
				return { subject: detail, detail: undefined };
			case "link-created":
			case "link-revoked":
				return {
					subject: (
						<Link to="/w/$slug/d/$id" params={{ slug: slugOf(workspace), id: r.subject }}>
							a document
						</Link>
					),
					detail: undefined,
				};
			default:
				return { subject: r.tool ? toolWords(r.tool) : undefined, detail };
		}
	};
}

function Decisions() {
	const { client } = useWorkspace();
	const about = useSubjects();
	const { nameOf } = usePeople();
	return (
		<Log
			name="audit"
			page={(query) =>
				unwrap(client.api.GET("/api/audit", { params: { query } })).then((b) => ({
					rows: b.audit as Schemas["Decision"][],
					next: b.next_cursor,
				}))
			}
			label="Decisions"
			cells={(r) => [
				r.at,
				nameOf(r.member_id),
				decisions[r.action],
				r.tool ?? ((r.action.startsWith("member") && nameOf(r.subject)) || r.subject),
				r.detail ?? "",
				r.session_id ?? "",
			]}
			empty="Answers to agents’ questions, and changes of rules, budgets, members, keys and links, will be here."
		>
			{(r: Schemas["Decision"]) => {
				const { subject, detail } = about(r);
				return (
					<Row key={r.id} at={r.at} member={r.member_id} session={r.session_id}>
						{decisions[r.action]} {subject && <b className="font-mid">{subject}</b>}
						{detail && <span className="text-ink-2"> · {detail}</span>}
					</Row>
				);
			}}
		</Log>
	);
}

const actions: Record<Schemas["AuditRow"]["action"], string> = {
	created: "added a credential of",
	changed: "changed a credential of",
	refreshed: "renewed the sign-in to",
	removed: "removed a credential of",
	used: "first used, in a session, a credential of",
};

function Credentials() {
	const { client } = useWorkspace();
	const { nameOf } = usePeople();
	return (
		<Log
			name="credential-audit"
			page={(query) =>
				unwrap(client.api.GET("/api/accounts/audit", { params: { query } })).then((b) => ({
					rows: b.rows as Schemas["AuditRow"][],
					next: b.next_cursor,
				}))
			}
			label="Credentials"
			empty="Each credential that is added, changed, renewed or first used in a session will be here."
			cells={(r) => [
				r.at,
				nameOf(r.member_id),
				actions[r.action],
				r.provider ? providerName(r.provider) : "all providers",
				[r.detail, r.address ?? r.service].filter(Boolean).join(", "),
				r.session_id ?? "",
			]}
		>
			{(r: Schemas["AuditRow"]) => (
				<Row key={r.sequence} at={r.at} member={r.member_id} session={r.session_id} from={r.address ?? r.service}>
					{actions[r.action]} <b className="font-mid">{r.provider ? providerName(r.provider) : "all providers"}</b>
					{r.detail && <span className="text-ink-2"> · {r.detail}</span>}
				</Row>
			)}
		</Log>
	);
}

const changes: Record<Schemas["McpChange"]["action"], string> = {
	"server-added": "added",
	"server-removed": "removed",
	"tools-approved": "approved changed tools of",
	"signed-in": "signed in to",
};

function McpServers() {
	const { client } = useWorkspace();
	const { nameOf } = usePeople();
	return (
		<Log
			name="mcp-audit"
			page={(query) =>
				unwrap(client.api.GET("/api/mcp-servers/audit", { params: { query } })).then((b) => ({
					rows: b.audit as Schemas["McpChange"][],
					next: b.next_cursor,
				}))
			}
			label="MCP servers"
			cells={(r) => [r.at, nameOf(r.member_id), changes[r.action], r.server_name, r.detail ?? "", ""]}
			empty="Each MCP server that is added, signed in to or removed, and each approval of its changed tools, will be here."
		>
			{(r: Schemas["McpChange"]) => (
				<Row key={r.id} at={r.at} member={r.member_id} session={null}>
					{changes[r.action]} <b className="font-mid">{r.server_name}</b>
					{r.detail && <span className="text-ink-2"> · {r.detail}</span>}
				</Row>
			)}
		</Log>
	);
}

/** A file has at most so many pages of rows; the API gives all. */
const mostPages = 200;

function Log<T>({
	name,
	page,
	label,
	empty,
	cells,
	children,
}: {
	name: string;
	page: (query: { limit: number; q?: string; cursor?: string }) => Promise<{ rows: T[]; next: string | null }>;
	label: string;
	empty: string;
	/** A row in words, for the file. */
	cells: (row: T) => [at: string, who: string, what: string, about: string, detail: string, session: string];
	children: (row: T) => ReactNode;
}) {
	const { workspace } = useWorkspace();
	const [words, setWords] = useState("");
	const [wanted, setWanted] = useState("");
	const query = useInfiniteQuery({
		queryKey: [workspace.id, name, wanted],
		initialPageParam: undefined as string | undefined,
		queryFn: ({ pageParam }) => page({ limit: 100, ...(wanted ? { q: wanted } : {}), ...(pageParam ? { cursor: pageParam } : {}) }),
		getNextPageParam: (p) => p.next ?? undefined,
		placeholderData: keepPreviousData,
	});
	const typing = useRef<ReturnType<typeof setTimeout>>(undefined);
	useEffect(() => () => clearTimeout(typing.current), []);
	const type = (typed: string) => {
		setWords(typed);
		clearTimeout(typing.current);
		typing.current = setTimeout(() => setWanted(typed.trim()), 200);
	};
	const [saving, setSaving] = useState(false);
	const save = async () => {
		setSaving(true);
		let read: { data?: InfiniteData<{ rows: T[] }> | undefined; hasNextPage: boolean; isError: boolean } = query;
		while (read.hasNextPage && !read.isError && (read.data?.pages.length ?? 0) < mostPages) read = await query.fetchNextPage();
		setSaving(false);
		if (read.isError) return;
		saveCsv(
			`${label.toLowerCase().replaceAll(" ", "-")}-${new Date().toISOString().slice(0, 10)}`,
			["when (UTC)", "who", "what", "about", "detail", "session"],
			(read.data?.pages ?? []).flatMap((p) => p.rows.map(cells)),
		);
	};
	return (
		<Loaded query={query}>
			{({ pages }) => {
				const rows = pages.flatMap((p) => p.rows);
				if (rows.length === 0 && !wanted)
					return (
						<Blank line="clear" title="Nothing yet">
							{empty}
						</Blank>
					);
				return (
					<>
						<div className={pageCss.tools}>
							<input
								type="search"
								aria-label={`Search ${label}`}
								placeholder="Who, what"
								value={words}
								maxLength={100}
								onChange={(e) => type(e.target.value)}
							/>
							<Button small icon={Download} busy={saving} onClick={() => void save()}>
								{wanted ? "Download these as CSV" : "Download all as CSV"}
							</Button>
						</div>
						<Table label={label} head={["When", "Who", "What", ["From", "wide"]]}>
							{rows.map(children)}
						</Table>
						<Refused error={query.error} />
						<p className="mt-4 flex items-center gap-3 text-small text-ink-3" role="status">
							{rows.length} {rows.length === 1 ? "row" : "rows"}
							{query.hasNextPage ? "" : ", all there are"}
							{query.hasNextPage && (
								<Button small busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
									Older
								</Button>
							)}
						</p>
					</>
				);
			}}
		</Loaded>
	);
}

function Row({
	at,
	member,
	session,
	from,
	children,
}: {
	at: string;
	member: string | null;
	session: string | null;
	from?: string;
	children: ReactNode;
}) {
	const { workspace } = useWorkspace();
	const { nameOf } = usePeople();
	const time = new Date(at);
	return (
		<tr>
			<td className="n text-small text-ink-3 whitespace-nowrap">
				<time dateTime={at}>
					{time.toLocaleDateString(undefined, { day: "numeric", month: "short" })}{" "}
					{time.toLocaleTimeString(undefined, { timeStyle: "medium" })}
				</time>
			</td>
			<td>
				<span className="flex items-center gap-2 whitespace-nowrap">
					<Face name={nameOf(member)} id={member ?? undefined} />
					<span className={pageCss.wide}>{nameOf(member)}</span>
				</span>
			</td>
			<td>
				{children}
				{session && (
					<>
						{" "}
						<Link className="text-small" to="/w/$slug/s/$id" params={{ slug: slugOf(workspace), id: session }}>
							in its session
						</Link>
					</>
				)}
			</td>
			<td className={`${pageCss.wide} n text-small text-ink-3`}>{from ?? ""}</td>
		</tr>
	);
}

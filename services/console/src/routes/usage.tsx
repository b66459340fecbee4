import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Download, Pencil, Plus, Trash2 } from "lucide-react";
import { type FormEvent, type ReactNode, useMemo, useState } from "react";
import { useBudgets } from "../budgets.ts";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { saveCsv } from "../csv.ts";
import { useSessions } from "../Frame.tsx";
import { Columns } from "../parts/Columns.tsx";
import { Blank, Button, Face, IconButton, Segments } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { Bar, Field, Loaded, Page, pageCss, Refused, Table } from "../parts/page.tsx";
import { usePeople } from "../people.ts";
import { type UsageSearch, usageSearch } from "../search.ts";
import { daysUntil, type Group, limitOf, type Measure, said, stack } from "../usage.ts";
import { clock, count, money, tokens, toolWords } from "../words.ts";
import css from "./usage.module.css";

type Budget = Schemas["Budget"];
type By = "day-model" | "model" | "member" | "session" | "tool";

/** What was spent: by day, model, member, session and tool, and the budgets. */
export function UsagePage() {
	const { workspace } = useWorkspace();
	const search = useSearch({ from: "/w/$slug/usage" });
	const navigate = useNavigate();
	const days = search.days ?? 30;
	const measure: Measure = search.of ?? "cost";
	const set = (change: { [K in keyof UsageSearch]?: UsageSearch[K] | undefined }) =>
		void navigate({
			to: "/w/$slug/usage",
			params: { slug: slugOf(workspace) },
			search: usageSearch({ ...search, ...change }),
			replace: true,
		});
	const owner = workspace.role === "owner";
	const budgets = useBudgets();
	const byDay = useUsage("day-model", days);
	return (
		<Page
			title="Usage"
			about={owner ? undefined : "What you have spent. Owners see the whole workspace."}
			actions={
				<Segments
					label="Period"
					value={String(days)}
					options={["7", "30", "90"].map((value) => ({ value, text: `${value} days` }))}
					onChange={(v) => set({ days: v === "7" ? 7 : v === "90" ? 90 : undefined })}
				/>
			}
		>
			<Loaded query={byDay}>
				{({ usage, more }) => (
					<div className="grid grid-cols-1 gap-6">
						<Figures usage={usage} days={days} budget={budgets.data?.find((b) => b.scope === "workspace")} />
						<Days
							usage={usage}
							more={more}
							days={days}
							measure={measure}
							table={search.view === "table"}
							set={set}
							budgets={budgets.data ?? []}
						/>
						<div className={css.two}>
							{owner && <ByMember days={days} budgets={budgets.data ?? []} />}
							<ByModel days={days} />
							<BySession days={days} />
							<ByTool days={days} />
						</div>
						<Budgets />
						<p className="text-small text-ink-3">Days are in UTC. Calls whose price nobody knows count as free.</p>
					</div>
				)}
			</Loaded>
		</Page>
	);
}

function useUsage(by: By, days: number) {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "usage", by, days],
		queryFn: () =>
			unwrap(client.api.GET("/api/usage", { params: { query: { by, from: `${daysUntil(Date.now(), days)[0]}T00:00:00Z` } } })).then(
				(b) => ({
					usage: b.usage as Group[],
					more: b.more,
				}),
			),
		refetchInterval: 60_000,
		placeholderData: (previous) => previous,
	});
}

const sum = (usage: readonly Group[], of: (g: Group) => number) => usage.reduce((n, g) => n + of(g), 0);

function Figures({ usage, days, budget }: { usage: Group[]; days: number; budget: Budget | undefined }) {
	const input = sum(usage, (g) => g.input_tokens);
	const cached = sum(usage, (g) => g.cache_read_tokens);
	const wasted = sum(usage, (g) => g.wasted_tokens);
	const unpriced = sum(usage, (g) => g.unpriced_calls);
	const spent = budget?.cost_micros && budget.used ? budget.used.cost_micros : undefined;
	const limit = budget?.cost_micros ?? undefined;
	return (
		<div className={css.figures}>
			<Figure label={`Cost, ${days} days`} value={money(sum(usage, (g) => g.cost_micros))}>
				{unpriced > 0 ? `${count(unpriced)} calls without a known price` : "all calls have a price"}
			</Figure>
			<Figure label="Tokens" value={tokens(input + sum(usage, (g) => g.output_tokens))}>
				{input > 0 ? `${Math.round((100 * cached) / input)} % of input read from cache` : "none yet"}
			</Figure>
			<Figure label="Model calls" value={count(sum(usage, (g) => g.calls))}>
				{wasted > 0 ? `${tokens(wasted)} tokens wasted by calls that broke off` : "nothing wasted"}
			</Figure>
			{spent !== undefined && limit !== undefined ? (
				<Figure label="Budget, today" value={money(spent)} of={`of ${money(limit)}`}>
					<Bar
						share={(100 * spent) / limit}
						label={`${Math.round((100 * spent) / limit)} % of today’s budget is spent`}
						tone={spent >= limit ? "stop" : spent >= 0.8 * limit ? "wait" : "live"}
					/>
				</Figure>
			) : (
				<Figure label="Budget, today" value="No limit">
					An owner can set one below
				</Figure>
			)}
		</div>
	);
}

function Figure({ label, value, of, children }: { label: string; value: string; of?: string; children: ReactNode }) {
	return (
		<div>
			<p className="micro">{label}</p>
			<p className={css.value}>
				{value} {of && <span>{of}</span>}
			</p>
			<div className="flex text-small text-ink-3">{children}</div>
		</div>
	);
}

const titles: Record<Measure, string> = { cost: "Cost per day", tokens: "Tokens per day", calls: "Model calls per day" };

function Days({
	usage,
	more,
	days,
	measure,
	table,
	set,
	budgets,
}: {
	usage: Group[];
	more: boolean;
	days: number;
	measure: Measure;
	table: boolean;
	set: (change: { of?: "tokens" | "calls" | undefined; view?: "table" | undefined }) => void;
	budgets: Budget[];
}) {
	const stacked = useMemo(() => stack(usage, daysUntil(Date.now(), days), measure), [usage, days, measure]);
	const say = said[measure];
	const all = budgets.find((b) => b.scope === "workspace");
	const budget = (measure === "cost" ? all?.cost_micros : measure === "tokens" ? all?.tokens : all?.steps) ?? undefined;
	const highest = stacked.days.find((d) => d.total === stacked.most);
	return (
		<section className={pageCss.card}>
			<header className={css.top}>
				<h2 className="text-h3 font-bold">{titles[measure]}</h2>
				<Segments
					label="Measure"
					value={measure}
					options={[
						{ value: "cost", text: "Cost" },
						{ value: "tokens", text: "Tokens" },
						{ value: "calls", text: "Calls" },
					]}
					onChange={(v) => set({ of: v === "cost" ? undefined : v })}
				/>
				<Segments
					label="View"
					value={table ? "table" : "chart"}
					options={[
						{ value: "chart", text: "Chart" },
						{ value: "table", text: "Table" },
					]}
					onChange={(v) => set({ view: v === "table" ? v : undefined })}
				/>
				{usage.length > 0 && <IconButton icon={Download} label="Download as CSV" onClick={() => saveUsage(usage)} />}
			</header>
			{usage.length === 0 ? (
				<Blank line="open" title="Nothing was spent">
					The first answer of an agent will be here within a minute.
				</Blank>
			) : table ? (
				<div className={css.figuresTable}>
					<Table
						label={titles[measure]}
						head={["Day", ...stacked.series.map((s): [string, "right"] => [s, "right"]), ["Total", "right"] as [string, "right"]]}
					>
						{[...stacked.days].reverse().map((d, i) => (
							<tr key={d.day}>
								<td className="n whitespace-nowrap">
									{d.day}
									{i === 0 && <span className="text-ink-3"> so far</span>}
								</td>
								{d.values.map((v, j) => (
									<td key={stacked.series[j]} className="n text-ink-2" data-right>
										{v ? say(v) : ""}
									</td>
								))}
								<td className="n" data-right>
									{say(d.total)}
								</td>
							</tr>
						))}
					</Table>
				</div>
			) : (
				<Columns
					stack={stacked}
					say={say}
					budget={budget}
					label={`${titles[measure]} by model, of ${days} days. The highest was ${highest ? `${highest.day} with ${say(highest.total)}` : "none"}. The table has the same figures.`}
				/>
			)}
			{more && <p className="px-4 pb-3 text-small text-wait">There are more models and days than are shown: choose fewer days.</p>}
		</section>
	);
}

/** Saves what was used by day and model. */
function saveUsage(usage: readonly Group[]) {
	saveCsv(
		`usage-${new Date().toISOString().slice(0, 10)}`,
		[
			"day (UTC)",
			"model",
			"calls",
			"input tokens",
			"of these from cache",
			"output tokens",
			"wasted tokens",
			"list price (USD)",
			"calls without a known price",
		],
		usage.map((u) => {
			const [day = "", ...model] = u.key.split(" ");
			return [
				day,
				model.join(" "),
				u.calls,
				u.input_tokens,
				u.cache_read_tokens,
				u.output_tokens,
				u.wasted_tokens,
				u.cost_micros / 1_000_000,
				u.unpriced_calls,
			];
		}),
	);
}

function Part({
	title,
	query,
	empty,
	children,
}: {
	title: string;
	query: ReturnType<typeof useUsage>;
	empty: string;
	children: (u: Group[]) => ReactNode;
}) {
	return (
		<section className={`${pageCss.card} ${css.part}`}>
			<h2 className="mb-2 text-h3 font-bold">{title}</h2>
			<Loaded query={query}>{({ usage }) => (usage.length === 0 ? <p className="text-ink-3">{empty}</p> : children(usage))}</Loaded>
		</section>
	);
}

const most = 10;

function ByMember({ days, budgets }: { days: number; budgets: Budget[] }) {
	const query = useUsage("member", days);
	const { nameOf } = usePeople();
	return (
		<Part title="By member" query={query} empty="Nobody yet.">
			{(usage) => {
				const top = Math.max(1, ...usage.map((u) => u.cost_micros));
				return (
					<ul className={css.shares}>
						{usage.slice(0, most).map((u) => {
							const own = budgets.find((b) => b.scope === "member" && b.subject === u.key);
							return (
								<li key={u.key}>
									<Face name={nameOf(u.key)} id={u.key} />
									<span className="cut">{nameOf(u.key)}</span>
									<Bar share={(100 * u.cost_micros) / top} label={`${nameOf(u.key)} spent ${money(u.cost_micros)}`} />
									<span className="n">
										{money(u.cost_micros)}
										{own?.cost_micros != null && <span className="text-small text-ink-3"> · {money(own.cost_micros)} a day</span>}
									</span>
								</li>
							);
						})}
					</ul>
				);
			}}
		</Part>
	);
}

function ByModel({ days }: { days: number }) {
	return (
		<Part title="By model" query={useUsage("model", days)} empty="No model yet.">
			{(usage) => (
				<Table label="By model" head={["Model", ["Calls", "right"], ["Per call", "right"], ["Cost", "right"]]}>
					{usage.slice(0, most).map((u) => (
						<tr key={u.key}>
							<td>{u.key.replace(/^[^/]*\//, "")}</td>
							<td className="n text-ink-3" data-right>
								{count(u.calls)}
							</td>
							<td className="n text-ink-3" data-right>
								{u.calls > u.unpriced_calls ? money(Math.round(u.cost_micros / (u.calls - u.unpriced_calls))) : ""}
							</td>
							<td className="n" data-right>
								{u.unpriced_calls === u.calls ? <span className="text-ink-3">not known</span> : money(u.cost_micros)}
							</td>
						</tr>
					))}
				</Table>
			)}
		</Part>
	);
}

function BySession({ days }: { days: number }) {
	const { workspace } = useWorkspace();
	const titles = new Map(useSessions().data?.map((s) => [s.id, s.title]));
	return (
		<Part title="By session" query={useUsage("session", days)} empty="No session yet.">
			{(usage) => (
				<Table label="By session" head={["Session", ["Tokens", "right"], ["Cost", "right"]]}>
					{usage.slice(0, most).map((u) => (
						<tr key={u.key}>
							<td className={css.name}>
								{u.key ? (
									<Link className="cut block" to="/w/$slug/s/$id" params={{ slug: slugOf(workspace), id: u.key }}>
										{titles.get(u.key) ?? `Session ${u.key.slice(-4)}`}
									</Link>
								) : (
									"Of an earlier version"
								)}
							</td>
							<td className="n text-ink-3" data-right>
								{tokens(u.input_tokens + u.output_tokens)}
							</td>
							<td className="n" data-right>
								{money(u.cost_micros)}
							</td>
						</tr>
					))}
				</Table>
			)}
		</Part>
	);
}

function ByTool({ days }: { days: number }) {
	return (
		<Part title="By tool" query={useUsage("tool", days)} empty="No tool yet.">
			{(usage) => (
				<Table label="By tool" head={["Tool", ["Calls", "right"], ["Failed", "right"], ["Each took", "right"]]}>
					{usage.slice(0, most).map((u) => (
						<tr key={u.key}>
							<td>{toolWords(u.key)}</td>
							<td className="n" data-right>
								{count(u.calls)}
							</td>
							<td className={`n ${u.errors ? "text-stop" : "text-ink-3"}`} data-right>
								{count(u.errors)}
							</td>
							<td className="n text-ink-3" data-right>
								{u.calls ? `${count(Math.round(u.duration_ms / u.calls))} ms` : ""}
							</td>
						</tr>
					))}
				</Table>
			)}
		</Part>
	);
}

const scopes: Record<Budget["scope"], string> = {
	workspace: "The workspace, a day",
	member: "Each member, a day",
	session: "Each session",
	run: "Each run",
};

function Budgets() {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const { nameOf } = usePeople();
	const budgets = useBudgets();
	const [editing, setEditing] = useState<{ budget?: Budget }>();
	const [deleting, setDeleting] = useState<Budget>();
	const owner = workspace.role === "owner";
	const whose = (b: Budget) =>
		b.subject === null ? scopes[b.scope] : b.scope === "member" ? `${nameOf(b.subject)}, a day` : `Session ${b.subject.slice(-4)}`;
	return (
		<section>
			<header className="mb-3 flex items-end gap-4">
				<div className="flex-1">
					<h2 className="text-h3 font-bold">Budgets</h2>
					<p className="text-small text-ink-2">
						A run looks at its budgets before each step, and stops when one is spent. What it did is kept.
					</p>
				</div>
				{owner && (
					<Button small icon={Plus} onClick={() => setEditing({})}>
						Set a budget
					</Button>
				)}
			</header>
			<Loaded query={budgets}>
				{(all) =>
					all.length === 0 ? (
						<p className="text-ink-3">No budget yet. Nothing but the providers’ own limits stops spending.</p>
					) : (
						<Table label="Budgets" head={["For", "Limits", ["Spent", "right"], ["Change", "sr"]]}>
							{all.map((b) => (
								<tr key={b.id}>
									<td className="font-mid">{whose(b)}</td>
									<td className="n text-ink-2">{limits(b).join(", ")}</td>
									<td className="n" data-right>
										{b.used && b.cost_micros !== null ? money(b.used.cost_micros) : b.used ? tokens(b.used.tokens) : ""}
									</td>
									<td className="whitespace-nowrap" data-right>
										{owner && (
											<>
												<IconButton icon={Pencil} label={`Change: ${whose(b)}`} onClick={() => setEditing({ budget: b })} />
												<IconButton icon={Trash2} label={`Delete: ${whose(b)}`} onClick={() => setDeleting(b)} />
											</>
										)}
									</td>
								</tr>
							))}
						</Table>
					)
				}
			</Loaded>
			{editing && <EditBudget {...editing} onClose={() => setEditing(undefined)} />}
			{deleting && (
				<Confirm
					title={`Delete the budget “${whose(deleting)}”?`}
					action="Delete"
					onClose={() => setDeleting(undefined)}
					onConfirm={async () => {
						await unwrap(client.api.DELETE("/api/budgets/{id}", { params: { path: { id: deleting.id } } }));
						await queries.invalidateQueries({ queryKey: [workspace.id, "budgets"] });
					}}
				>
					Runs that it has stopped can be continued; it limits nothing from now on.
				</Confirm>
			)}
		</section>
	);
}

function limits(b: Budget): string[] {
	return [
		...(b.cost_micros !== null ? [money(b.cost_micros)] : []),
		...(b.tokens !== null ? [`${tokens(b.tokens)} tokens`] : []),
		...(b.steps !== null ? [`${count(b.steps)} steps`] : []),
		...(b.seconds !== null ? [`${clock(b.seconds * 1000)} running`] : []),
	];
}

function EditBudget({ budget, onClose }: { budget?: Budget; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const { members, nameOf } = usePeople();
	const [scope, setScope] = useState<Budget["scope"]>(budget?.scope ?? "workspace");
	const [subject, setSubject] = useState(budget?.subject ?? "");
	const text = (n: number | null | undefined, unit: number) => (n == null ? "" : String(n / unit));
	const [cost, setCost] = useState(text(budget?.cost_micros, 1_000_000));
	const [amount, setAmount] = useState(text(budget?.tokens, 1));
	const [steps, setSteps] = useState(text(budget?.steps, 1));
	const [minutes, setMinutes] = useState(text(budget?.seconds, 60));
	const [problems, setProblems] = useState<Record<string, string>>({});
	const save = useMutation({
		mutationFn: (body: Schemas["SetBudget"]) => unwrap(client.api.PUT("/api/budgets", { body })),
		onSuccess: async () => {
			await queries.invalidateQueries({ queryKey: [workspace.id, "budgets"] });
			onClose();
		},
	});
	const submit = (e: FormEvent) => {
		e.preventDefault();
		const values = { cost: limitOf(cost, 1_000_000), tokens: limitOf(amount, 1), steps: limitOf(steps, 1), seconds: limitOf(minutes, 60) };
		const wrong: Record<string, string> = Object.fromEntries(
			Object.entries(values).flatMap(([k, v]) => (v === undefined ? [[k, "A number from 0, or empty for no limit."]] : [])),
		);
		if (Object.values(values).every((v) => v === null)) wrong.cost = "Set at least one limit.";
		setProblems(wrong);
		if (Object.keys(wrong).length > 0) return;
		save.mutate({
			scope,
			...(scope === "member" && subject ? { subject } : budget?.subject && scope === budget.scope ? { subject: budget.subject } : {}),
			...(values.cost != null ? { cost_micros: values.cost } : {}),
			...(values.tokens != null ? { tokens: values.tokens } : {}),
			...(values.steps != null ? { steps: values.steps } : {}),
			...(values.seconds != null ? { seconds: values.seconds } : {}),
		});
	};
	const fields = [
		["cost", "Cost, in dollars", cost, setCost],
		["tokens", "Tokens", amount, setAmount],
		["steps", "Steps", steps, setSteps],
		["seconds", "Running time, in minutes", minutes, setMinutes],
	] as const;
	return (
		<Dialog
			title={budget ? "Change the budget" : "Set a budget"}
			onClose={onClose}
			footer={
				<>
					<Button onClick={onClose}>Cancel</Button>
					<Button type="submit" form="budget" look="primary" busy={save.isPending}>
						Set budget
					</Button>
				</>
			}
		>
			<form id="budget" className="grid gap-4" onSubmit={submit} noValidate>
				<Field label="For" hint="A budget for the same replaces the one that is there.">
					{(c) => (
						<select {...c} value={scope} disabled={budget !== undefined} onChange={(e) => setScope(e.target.value as Budget["scope"])}>
							{Object.entries(scopes).map(([value, words]) => (
								<option key={value} value={value}>
									{words}
								</option>
							))}
						</select>
					)}
				</Field>
				{scope === "member" && (
					<Field label="Member">
						{(c) => (
							<select {...c} value={subject} disabled={budget !== undefined} onChange={(e) => setSubject(e.target.value)}>
								<option value="">each of them</option>
								{members.data?.map((m) => (
									<option key={m.member_id} value={m.member_id}>
										{nameOf(m.member_id)}
									</option>
								))}
							</select>
						)}
					</Field>
				)}
				<div className={css.limits}>
					{fields.map(([key, label, value, set]) => (
						<Field key={key} label={label} problem={problems[key]}>
							{(c) => (
								<input
									{...c}
									inputMode="decimal"
									value={value}
									onChange={(e) => set(e.target.value)}
									placeholder="no limit"
									maxLength={20}
								/>
							)}
						</Field>
					))}
				</div>
				<Refused error={save.error} />
			</form>
		</Dialog>
	);
}

import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Check } from "lucide-react";
import { type ReactNode, useEffect, useState } from "react";
import { useAccounts } from "../accounts.ts";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { AddAccount } from "../parts/AddAccount.tsx";
import { Button, Icon, Notice } from "../parts/controls.tsx";
import { usePeople } from "../people.ts";
import { sentence } from "../words.ts";
import newCss from "./new.module.css";
import { examples, useBegin } from "./new.tsx";
import css from "./welcome.module.css";

/** The first run: what is up, what to try, and what to add. */
export function WelcomePage() {
	const { client, workspace } = useWorkspace();
	const { begin, busy, error } = useBegin();
	const { members } = usePeople();
	const accounts = useAccounts();
	const [adding, setAdding] = useState(false);
	const ready = useReady();
	const models = useQuery({
		queryKey: [workspace.id, "models"],
		queryFn: () => unwrap(client.api.GET("/api/models")),
	});
	useEffect(() => {
		document.title = "Welcome · Signalbox";
	}, []);
	const owner = workspace.role === "owner";
	const model = models.data?.models.find((m) => m.default) as Schemas["Model"] | undefined;
	const own = accounts.data?.accounts.some((a) => a.origin === "workspace") ?? false;
	const together = (members.data?.length ?? 1) > 1;
	const down = ready.data?.filter((c) => c.problem) ?? [];
	const clear = ready.data !== undefined && down.length === 0;
	return (
		<div className="scroll">
			<div className={css.page}>
				<h1 className="text-h1 font-bold">{down.length > 0 ? "A line is blocked" : "The lines are clear"}</h1>
				<p className={css.lead}>
					{down.length > 0
						? "Not everything runs. What does can be used; the rest comes back by itself once it is up."
						: model?.simulated
							? "Everything runs. A simulated model answers until you add a real one, so you can try all of it now."
							: "Everything runs. You can begin."}
				</p>
				<ol className={css.steps}>
					<Step n={1} done={clear} title={`Signed in to ${workspace.name}`}>
						You are its {workspace.role}.{" "}
						{ready.data === undefined
							? ready.error
								? "What is up could not be asked."
								: ""
							: down.length > 0
								? down.map((c) => `${c.name}: ${c.problem}`).join("; ")
								: `${names(ready.data.map((c) => c.name))} are up.`}
					</Step>
					<Step n={2} done={model !== undefined} title={model || models.isPending ? "A model answers" : "No model answers yet"}>
						{model?.simulated
							? "Simulated. It writes documents, calls tools, thinks, and can play an overload."
							: model
								? `${model.name}, unless a session asks for another.`
								: models.error
									? sentence(models.error.message)
									: models.data && (sentence(models.data.problems[0]?.reason ?? "") || "Add an account of a provider.")}
					</Step>
					<Step n={3} title="Try these">
						<div className={`${newCss.try} ${css.try}`}>
							<div>
								{examples.map(([text, about]) => (
									<button key={text} type="button" onClick={() => void begin(text)} disabled={busy}>
										<b>{text}</b>
										<span>{about}</span>
									</button>
								))}
							</div>
						</div>
						{error && (
							<div className="mt-3" role="alert">
								<Notice tone="stop">
									<b className="font-bold">Not started.</b> {sentence(error)}
								</Notice>
							</div>
						)}
						<p className="mt-3">
							Or{" "}
							<Link to="/w/$slug" params={{ slug: slugOf(workspace) }}>
								begin with a question of your own
							</Link>
							.
						</p>
					</Step>
					{owner && (
						<Step n={4} done={own} title="Add a real model">
							{own ? (
								<>
									This workspace has an account.{" "}
									<Link to="/w/$slug/accounts" params={{ slug: slugOf(workspace) }}>
										See what it does
									</Link>
									.
								</>
							) : (
								<>
									By API key or sign-in. Or set <code>ANTHROPIC_API_KEY</code> and start again.
								</>
							)}
							<p className="mt-2">
								<Button small onClick={() => setAdding(true)}>
									Add account
								</Button>
							</p>
						</Step>
					)}
					{owner && (
						<Step n={5} done={together} title="Add somebody">
							Documents are better with two people and an agent in them.{" "}
							<Link to="/w/$slug/members" params={{ slug: slugOf(workspace) }}>
								Add a member
							</Link>
							.
						</Step>
					)}
				</ol>
			</div>
			{adding && <AddAccount onClose={() => setAdding(false)} />}
		</div>
	);
}

function Step({ n, title, done, children }: { n: number; title: string; done?: boolean; children: ReactNode }) {
	return (
		<li data-done={done || undefined}>
			<span className={css.number}>
				{done ? <Icon of={Check} size={14} /> : n}
				{done && <span className="sr">Done</span>}
			</span>
			<div>
				<h2 className="font-mid">{title}</h2>
				<div className="text-small text-ink-2">{children}</div>
			</div>
		</li>
	);
}

const parts: Record<string, string> = {
	postgres: "the database",
	nats: "the bus",
	disk: "the disk",
	"agent-runner": "agents",
	"tool-executor": "tools",
	"document-sync": "documents",
	"credential-broker": "credentials",
};

/** What the server says about its parts. */
function useReady() {
	return useQuery({
		queryKey: ["ready"],
		queryFn: async () => {
			const answer = (await fetch("/ready").then((r) => r.json())) as { checks?: Record<string, string> };
			return Object.entries(answer.checks ?? {}).map(([name, said]) => ({ name: parts[name] ?? name, problem: said === "ok" ? "" : said }));
		},
		refetchInterval: 5_000,
	});
}

/** "The database, the bus and tools" */
function names(all: string[]): string {
	const text = all.length > 1 ? `${all.slice(0, -1).join(", ")} and ${all.at(-1)}` : (all[0] ?? "");
	return text.charAt(0).toUpperCase() + text.slice(1);
}

import { Link } from "@tanstack/react-router";
import { Bell } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import { useApprovals } from "../Frame.tsx";
import { Ask } from "../parts/Ask.tsx";
import { Blank, Button, IconButton, Segments } from "../parts/controls.tsx";
import { Notices } from "../parts/Notices.tsx";
import { RunSmall } from "../parts/RunSmall.tsx";
import { useRows } from "../parts/rows.ts";
import { usePeople } from "../people.ts";
import { ago } from "../words.ts";
import { Failed, useFailure } from "./failed.tsx";
import css from "./inbox.module.css";

/** What waits for a person, oldest first: what waits for the one who looks comes first. */
export function InboxPage() {
	const { workspace } = useWorkspace();
	const approvals = useApprovals();
	const failure = useFailure(approvals);
	const { me, nameOf } = usePeople();
	const slug = slugOf(workspace);
	const list = useRef<HTMLOListElement>(null);
	const [whose, setWhose] = useState<"all" | "mine">("all");
	const [at, setAt] = useState("");
	const [bell, setBell] = useState(false);
	const all = approvals.data ?? [];
	const more = approvals.hasNextPage ? "+" : "";
	const mine = all.filter((a) => a.asked_for === me);
	const shown = whose === "mine" ? mine : [...mine, ...all.filter((a) => a.asked_for !== me)];
	const current = shown.find((a) => a.tool_call_id === at) ?? shown[0];
	useRows(list);
	useEffect(() => {
		document.title = "Inbox · Signalbox";
	}, []);
	if (failure) return <Failed error={failure} onRetry={() => void approvals.refetch()} />;
	return (
		<div className="scroll">
			<div className="page">
				<header className={css.head}>
					<h1 className="flex-1 text-h2 font-bold">Inbox</h1>
					<Segments
						label="Whose"
						value={whose}
						options={[
							{ value: "all", text: `Everybody’s ${all.length}${more}` },
							{ value: "mine", text: `Mine ${mine.length}${more}` },
						]}
						onChange={setWhose}
					/>
					<IconButton icon={Bell} label="Notifications" onClick={() => setBell(true)} />
				</header>
				{shown.length === 0 && approvals.isSuccess && !more && (
					<Blank line="clear" title="Nothing waits for you">
						Agents go on by themselves. When one needs a yes, it is here and in the tab’s title.
					</Blank>
				)}
				<ol className={css.list} ref={list}>
					{shown.map((a) => (
						<li key={a.tool_call_id} data-row={a.tool_call_id} tabIndex={-1} onFocus={() => setAt(a.tool_call_id)}>
							<p className={css.where}>
								<span className="cut">
									{nameOf(a.asked_for)} in{" "}
									<Link to="/w/$slug/s/$id" params={{ slug, id: a.session_id }}>
										{a.session_title || "New session"}
									</Link>
								</span>
								<RunSmall small steps={a.step_index} state="waiting" />
								<time className="n" dateTime={a.asked_at}>
									{ago(a.asked_at)}
								</time>
							</p>
							<Ask
								session={a.session_id}
								run={a.run_id}
								where={a.session_title || "New session"}
								call={{ id: a.tool_call_id, tool: a.tool_name, state: "asking", received: 0, args: a.args }}
								ask={{
									reason: a.reason,
									expiresAt: a.expires_at ?? undefined,
									outcomeUnknown: a.question === "outcome",
									askedAt: a.asked_at,
								}}
								keys={a === current}
								onAnswered={() => void approvals.refetch()}
							/>
						</li>
					))}
				</ol>
				{more && (
					<p className="mt-4">
						<Button busy={approvals.isFetchingNextPage} onClick={() => void approvals.fetchNextPage()}>
							Newer questions
						</Button>
					</p>
				)}
				{shown.length > 0 && (
					<p className={css.keys}>
						<kbd>J</kbd> <kbd>K</kbd> move, <kbd>A</kbd> approve, <kbd>R</kbd> refuse.
					</p>
				)}
			</div>
			{bell && <Notices onClose={() => setBell(false)} />}
		</div>
	);
}

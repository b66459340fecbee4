import { Link } from "@tanstack/react-router";
import { useEffect } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import { useApprovals } from "../Frame.tsx";
import { Ask } from "../parts/Ask.tsx";
import { Blank } from "../parts/controls.tsx";
import { Failed } from "./failed.tsx";

/** What waits for a person, oldest first. */
export function InboxPage() {
	const { workspace } = useWorkspace();
	const approvals = useApprovals();
	const slug = slugOf(workspace);
	const n = approvals.data?.length ?? 0;
	useEffect(() => {
		document.title = `${n ? `(${n}) ` : ""}Inbox · Signalbox`;
	}, [n]);
	if (approvals.error) return <Failed error={approvals.error} onRetry={() => void approvals.refetch()} />;
	return (
		<div className="scroll">
			<div className="page">
				<h1 className="mb-5 text-h2 font-bold">Inbox</h1>
				{n === 0 && approvals.isSuccess && (
					<Blank line="clear" title="Nothing waits for you">
						Agents go on by themselves. When one needs a yes, it is here and in the tab’s title.
					</Blank>
				)}
				<ol className="grid max-w-160 gap-6">
					{approvals.data?.map((a) => (
						<li key={a.tool_call_id}>
							<p className="mb-2 text-small text-ink-2">
								in{" "}
								<Link to="/w/$slug/s/$id" params={{ slug, id: a.session_id }}>
									{a.session_title || "New session"}
								</Link>
							</p>
							<Ask
								session={a.session_id}
								call={{ id: a.tool_call_id, tool: a.tool_name, state: "asking", received: 0, args: a.args }}
								ask={{ reason: a.reason, expiresAt: a.expires_at ?? undefined, outcomeUnknown: a.question === "outcome" }}
							/>
						</li>
					))}
				</ol>
			</div>
		</div>
	);
}

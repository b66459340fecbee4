// A chat with the AI SDK's useChat. The run goes on if the page is closed: the same address shows
// the conversation again, and the rest of an answer as it is written.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { createRoot } from "react-dom/client";

const { url, token, workspace } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const headers = { Authorization: `Bearer ${token}`, "X-Workspace-Id": workspace, "X-AI-SDK-Version": "7" };

// The chat's id is a session's id, kept in the page's address.
const here = new URL(location.href);
let chat = here.searchParams.get("chat");
let messages = [];
if (chat) {
	const answer = await fetch(`${url}/api/sessions/${chat}?format=ui`, { headers });
	messages = (await answer.json()).messages;
} else {
	const answer = await fetch(`${url}/api/sessions`, { method: "POST", headers });
	chat = (await answer.json()).session.id;
	here.searchParams.set("chat", chat);
	history.replaceState(null, "", here);
}

function Chat() {
	const { messages: shown, sendMessage, status, error, addToolApprovalResponse } = useChat({
		id: chat,
		messages,
		resume: true,
		transport: new DefaultChatTransport({ api: `${url}/api/chat`, headers }),
		sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
	});
	const send = (event) => {
		event.preventDefault();
		sendMessage({ text: event.target.elements.text.value });
		event.target.reset();
	};
	const part = (p, i) => {
		if (p.type === "text") return <span key={i}>{p.text}</span>;
		if (p.state === "approval-requested") {
			const answer = (approved) => addToolApprovalResponse({ id: p.approval.id, approved });
			return (
				<span key={i}>
					May it call {p.type.slice(5)}? <button type="button" onClick={() => answer(true)}>Yes</button>{" "}
					<button type="button" onClick={() => answer(false)}>No</button>
				</span>
			);
		}
		return p.toolCallId ? <small key={i}>[{p.type.slice(5)}] </small> : null;
	};
	return (
		<form onSubmit={send}>
			{shown.map((m) => (
				<p key={m.id} data-role={m.role}>{m.parts.map(part)}</p>
			))}
			{error && <p role="alert">{error.message}</p>}
			<input name="text" aria-label="Message" autoComplete="off" />
			<output>{status}</output>
		</form>
	);
}

createRoot(document.getElementById("root")).render(<Chat />);

package api

import (
	"context"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

func (a *API) branches() {
	const tag = "Branches"
	register(a, op("regenerate", "POST /api/sessions/{id}/regenerate", tag, "Have a message answered again, and watch the answer", answers(a.sendResponses()),
		about("The new answer becomes a sibling of the others, and the current branch ends with it. Documents and what tools have done outside stay as they are; the model is told which "+
			"calls other branches have made. 409 while a run of the session is active or queued. The answer has the forms of POST /api/sessions/{id}/messages.")), editors, a.regenerate)
	handle(a, op("switch-branch", "PUT /api/sessions/{id}/leaf", tag, "Switch to another branch",
		about("The branch with the given message becomes the current one, up to the newest message there. Viewers of the session get a snapshot. "+
			"409 while a run of the session is active or queued.")), editors, a.switchBranch)
	handle(a, op("fork-session", "POST /api/sessions/{id}/fork", tag, "Copy a session up to a message", created,
		about("The new session has the same settings, and copies of the messages of one branch. Their runs remain those of the original.")), editors, a.forkSession)
}

// Regenerate is the body of POST /api/sessions/{id}/regenerate.
type Regenerate struct {
	MessageID        string   `json:"message_id,omitempty" format:"uuid" doc:"The message of the user to answer, or a message of the answer to replace. Absent: the last message of the user."`
	Model            string   `json:"model,omitempty" doc:"Absent: the session's model."`
	Provider         string   `json:"provider,omitempty" doc:"Absent: the session's provider."`
	Tools            []string `json:"tools,omitempty" nullable:"true" doc:"Absent: the session's tools."`
	CollectToolStats bool     `json:"collect_tool_stats,omitempty"`
	IdempotencyKey   string   `json:"idempotency_key,omitempty" doc:"The same as the header Idempotency-Key."`
	Timezone         string   `json:"timezone,omitempty" doc:"The sender's IANA timezone." example:"Europe/Paris"`

	ResponseFormat *ResponseFormat `json:"response_format,omitempty" doc:"The form of the final answer; free text if absent."`

	ClientTools []ClientTool `json:"client_tools,omitempty" nullable:"true" maxItems:"64" doc:"Tools that clients run. Absent: the session's."`
}

func (a *API) regenerate(ctx context.Context, in *struct {
	SessionPath
	Idempotent
	Accept string      `header:"Accept" hidden:"true"` // the responses document it
	Prefer string      `header:"Prefer" doc:"respond-async: answer at once; the run continues without a viewer."`
	Body   *Regenerate `required:"false"`
},
) (*reply, error) {
	b := Regenerate{}
	if in.Body != nil {
		b = *in.Body
	}
	send := SendMessage{
		Model: b.Model, Provider: b.Provider, Tools: b.Tools, CollectToolStats: b.CollectToolStats, IdempotencyKey: b.IdempotencyKey,
		Timezone: b.Timezone, ResponseFormat: b.ResponseFormat, ClientTools: b.ClientTools,
	}
	req, err := send.request(in.Key)
	if err != nil {
		return nil, err
	}
	req.SessionId, req.Regenerate = in.ID.String(), &agentv1.Regenerate{}
	if b.MessageID != "" {
		of, err := parseID[id.Message]("message_id", b.MessageID)
		if err != nil {
			return nil, err
		}
		req.Regenerate.Of = &agentv1.MessageRef{By: &agentv1.MessageRef_MessageId{MessageId: of.String()}}
	}
	return a.deliver(ctx, req, deliveryOf(in.Accept, in.Prefer))
}

// Leaf is the body of PUT /api/sessions/{id}/leaf.
type Leaf struct {
	MessageID string `json:"message_id" format:"uuid" doc:"A message of the branch."`
}

func (a *API) switchBranch(ctx context.Context, in *struct {
	SessionPath
	Repeatable
	Body Leaf
},
) (*SessionDetails, error) {
	of, err := parseID[id.Message]("message_id", in.Body.MessageID)
	if err != nil {
		return nil, err
	}
	if _, err := a.cfg.Conversations.SwitchBranch(ctx, &agentv1.SwitchBranchRequest{SessionId: in.ID.String(), MessageId: of.String()}); err != nil {
		return nil, err
	}
	res, err := a.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: in.ID.String()})
	if err != nil {
		return nil, err
	}
	d, err := viewDetails(res, 0)
	return &d, err
}

// Fork is the body of POST /api/sessions/{id}/fork.
type Fork struct {
	MessageID string `json:"message_id,omitempty" format:"uuid" doc:"The last message to copy, of any branch; of an answer, all messages are copied. Absent: the last message of the current branch."`
	Title     string `json:"title,omitempty" maxLength:"300" doc:"Absent: the session's title."`
}

func (a *API) forkSession(ctx context.Context, in *struct {
	SessionPath
	Idempotent
	Body *Fork `required:"false"`
},
) (*sessionOutputBody, error) {
	b := Fork{}
	if in.Body != nil {
		b = *in.Body
	}
	if err := checkText("title", b.Title, 300); err != nil {
		return nil, err
	}
	if b.MessageID != "" {
		if _, err := parseID[id.Message]("message_id", b.MessageID); err != nil {
			return nil, err
		}
	}
	res, err := a.cfg.Conversations.ForkSession(ctx, &agentv1.ForkSessionRequest{
		SessionId: in.ID.String(), MessageId: b.MessageID, Title: b.Title, IdempotencyKey: in.Key.text,
	})
	return answer(res.GetSession(), err, sessionBody)
}

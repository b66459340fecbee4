package api

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/fault"
)

const exampleStream = `retry: 1000
:
event: text-delta
data: {"type":"text-delta","delta":"Hello"}
id: 1-2

event: step-complete
data: {"type":"step-complete","stepIndex":0,"tokensIn":12,"tokensOut":3,"finishReason":"stop"}
id: 1-3

event: done
data: {"type":"done","text":"Hello","totalTokensIn":12,"totalTokensOut":3,"steps":1,"finishReason":"stop","runId":"0193a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b"}
id: 1-4

`

// streamResponse describes a stream of events.
func (a *API) streamResponse() *huma.Response {
	r := a.huma.OpenAPI().Components.Schemas
	event := &huma.Schema{Description: "The data of one event; its `event:` line is the same as `type`."}
	for _, t := range []reflect.Type{
		reflect.TypeFor[TextDeltaEvent](), reflect.TypeFor[ReasoningDeltaEvent](), reflect.TypeFor[ToolCallStartEvent](),
		reflect.TypeFor[ToolCallDeltaEvent](), reflect.TypeFor[ToolCallCompleteEvent](), reflect.TypeFor[ToolApprovalRequestEvent](), reflect.TypeFor[ToolApprovalResponseEvent](),
		reflect.TypeFor[ToolClientRequestEvent](),
		reflect.TypeFor[ToolProgressEvent](), reflect.TypeFor[ToolResultEvent](), reflect.TypeFor[SourceEvent](), reflect.TypeFor[CitationEvent](), reflect.TypeFor[StepCompleteEvent](),
		reflect.TypeFor[StepRetryEvent](), reflect.TypeFor[CompactionEvent](), reflect.TypeFor[SessionTitleEvent](), reflect.TypeFor[WaitingEvent](), reflect.TypeFor[RunStartEvent](), reflect.TypeFor[UserMessageEvent](),
		reflect.TypeFor[DoneEvent](), reflect.TypeFor[ErrorEvent](), reflect.TypeFor[SnapshotEvent](),
	} {
		event.OneOf = append(event.OneOf, r.Schema(t, true, t.Name()))
	}
	r.Map()["Event"] = event
	return &huma.Response{
		Description: "Server-sent events. Each step has any number of deltas, then each tool-call-complete with its tool-result, then step-complete. " +
			"A run ends with one done or one error. If the connection ends before that, resume with the last id.",
		Content: map[string]*huma.MediaType{"text/event-stream": {
			Schema: &huma.Schema{Type: huma.TypeString, Description: "Events whose data is one line of JSON, an Event.", Extensions: map[string]any{
				"contentMediaType": "application/json", "contentSchema": map[string]any{"$ref": "#/components/schemas/Event"},
			}},
			Example: exampleStream,
		}},
	}
}

func chunkStream() *huma.Response {
	header := func(doc string) *huma.Param {
		return &huma.Header{Description: doc, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	return &huma.Response{
		Description: "A UI message stream: server-sent events whose data is one chunk, a JSON object, and at the end [DONE].",
		Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}, Example: exampleChunks}},
		Headers: map[string]*huma.Header{
			"X-Vercel-Ai-Ui-Message-Stream": header("v1"),
			"X-Workflow-Run-Id":             header("Names this response in GET /api/chat/{id}/stream, which continues it after startIndex chunks."),
			"X-Session-Id":                  header("The chat's session."),
		},
	}
}

const exampleChunks = "data: {\"type\":\"start\",\"messageId\":\"…\"}\n\ndata: {\"type\":\"start-step\"}\n\ndata: {\"type\":\"text-start\",\"id\":\"part-1\"}\n\n" +
	"data: {\"type\":\"text-delta\",\"id\":\"part-1\",\"delta\":\"Hello\"}\n\ndata: {\"type\":\"text-end\",\"id\":\"part-1\"}\n\ndata: {\"type\":\"finish-step\"}\n\n" +
	"data: {\"type\":\"finish\",\"finishReason\":\"stop\"}\n\ndata: [DONE]\n\n"

func errorContent(r huma.Registry) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"application/json": {Schema: r.Schema(reflect.TypeFor[Error](), true, "Error")}}
}

func (a *API) sendResponses() map[string]*huma.Response {
	r := a.huma.OpenAPI().Components.Schemas
	ok := a.streamResponse()
	ok.Content["application/json"] = &huma.MediaType{Schema: r.Schema(reflect.TypeFor[SendResult](), true, "SendResult")}
	return map[string]*huma.Response{
		"200": ok,
		"202": {
			Description: "The run, which continues; with the header Prefer: respond-async.",
			Content: map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{
				Type: huma.TypeObject, Required: []string{"run", "message_id"},
				Properties: map[string]*huma.Schema{
					"run":        r.Schema(reflect.TypeFor[Run](), true, "Run"),
					"message_id": {Type: huma.TypeString, Format: "uuid", Description: "The message: the run answers it or, with the mode steer, is joined by it."},
				},
			}}},
		},
	}
}

// describe adds what all operations have in common: authentication, the workspace, and errors.
func describe(doc *huma.OpenAPI) {
	// Relative, because a gateway does not know its own address.
	doc.Servers = []*huma.Server{{URL: "/", Description: "The gateway that serves this document."}}
	doc.Info.License = &huma.License{Name: "Apache License 2.0", Identifier: "Apache-2.0"}
	doc.Tags = tags
	schemas := doc.Components.Schemas
	failure := schemas.Schema(reflect.TypeFor[Error](), true, "Error")
	openAIFailure := schemas.Schema(reflect.TypeFor[OpenAIError](), true, "OpenAIError")
	doc.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", Description: "An access token (JWT) of a person, or an API key of a workspace (sb_…)."},
		"share": {Type: "http", Scheme: "bearer", Description: "The secret of a share link (sbl_…)."},
		"url":   {Type: "apiKey", In: "query", Name: "token", Description: "The same in the URL, for clients that cannot set headers."},
	}
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			delete(op.Responses, "default")
			op.Security = []map[string][]string{{"token": {}}}
			who, _ := op.Metadata[accessKey].(access)
			if who.page {
				op.Security = []map[string][]string{{}} // none
				continue
			}
			if who.share {
				op.Security = []map[string][]string{{"share": {}}}
			}
			if who.urlToken {
				op.Security = append(op.Security, map[string][]string{"url": {}})
			}
			if who.workspace == fromHeader {
				op.Parameters = append(op.Parameters, &huma.Param{
					Name: "X-Workspace-Id", In: "header", Schema: &huma.Schema{Type: huma.TypeString, Format: "uuid"},
					Description: "The workspace. Optional with an API key. Clients that cannot set headers send ?workspace_id= instead.",
				})
			}
			for _, e := range errorsOf(op, who) {
				media := &huma.MediaType{Schema: failure, Example: e.example}
				if who.likeOpenAI {
					e.example.status = e.status
					media = &huma.MediaType{Schema: openAIFailure, Example: e.example.asOpenAI()}
				}
				op.Responses[strconv.Itoa(e.status)] = &huma.Response{Description: e.about, Content: map[string]*huma.MediaType{"application/json": media}}
			}
		}
	}
	optionalDefaults(doc)
	for _, name := range []string{"ErrorModel", "ErrorDetail"} {
		delete(schemas.Map(), name)
	}
	for _, s := range schemas.Map() {
		if _, ok := s.AdditionalProperties.(bool); ok {
			s.AdditionalProperties = nil // the gateway ignores unknown fields, and clients should too
		}
		for _, p := range s.Properties {
			if p.Nullable && len(p.Enum) > 0 {
				p.Enum = append(p.Enum, nil) // huma adds null to the type only
			}
		}
	}
	// huma marks only scalars as nullable.
	for _, name := range []string{"SessionDetails", "SnapshotEvent"} {
		if s := schemas.Map()[name]; s != nil {
			for field, schema := range map[string]string{"active_run": "Run", "summary": "Summary"} {
				s.Properties[field] = &huma.Schema{
					Description: s.Properties[field].Description,
					AnyOf:       []*huma.Schema{{Ref: "#/components/schemas/" + schema}, {Type: "null"}},
				}
			}
		}
	}
}

// tags are the parts of the API in display order.
var tags = []*huma.Tag{
	{Name: "Sessions", Description: "Conversations with an agent."},
	{Name: "Messages", Description: "Messages of a session: send, watch, stop."},
	{Name: "Branches", Description: "Versions of messages and of answers: make another one, switch, fork."},
	{Name: "Chat", Description: "The protocol of the AI SDK's useChat (versions 5 to 7)."},
	{Name: "OpenAI", Description: "The protocols of OpenAI's API, for programs that speak them. Models are presets."},
	{Name: "AG-UI", Description: "The Agent-User Interaction Protocol, version 1.0."},
	{Name: "Runs", Description: "An agent's work on a message: steps, tool calls, usage."},
	{Name: "Documents", Description: "Documents as Markdown, with their history."},
	{Name: "Live documents", Description: aboutSockets},
	{Name: "Tools", Description: "Tools that agents can call."},
	{Name: "MCP servers", Description: "Servers with further tools that the workspace has added."},
	{Name: "Models", Description: "Models that the workspace can call."},
	{Name: "Connections", Description: "Access to Google, Notion and GitHub for tools."},
	{Name: "Accounts", Description: "The workspace's accounts at model providers."},
	{Name: "Signing in", Description: "Browser sessions: a token or a link is exchanged for a cookie that no script can read."},
	{Name: "Workspaces", Description: "Tenants, their members and roles."},
	{Name: "API keys", Description: "Keys for programs."},
	{Name: "Presets", Description: "Kinds of agents: system prompt, limits and tools."},
	{Name: "Approvals", Description: "Tool calls that wait for a person, and rules that answer for one."},
	{Name: "Usage and budgets", Description: "What model calls used and cost, and limits on it."},
}

// optionalDefaults moves the defaults of request fields to their descriptions, because
// generated clients require fields that have a default.
func optionalDefaults(doc *huma.OpenAPI) {
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil || op.RequestBody == nil {
				continue
			}
			for _, media := range op.RequestBody.Content {
				s := media.Schema
				if s.Ref != "" {
					s = doc.Components.Schemas.SchemaFromRef(s.Ref)
				}
				for _, p := range s.Properties {
					if p.Default != nil {
						p.Description = strings.TrimSpace(fmt.Sprintf("%s Absent: %v.", p.Description, p.Default))
						p.Default = nil
					}
				}
			}
		}
	}
}

// errorAnswer describes the answer with one error status.
type errorAnswer struct {
	status  int
	about   string
	example Error
}

func errorsOf(op *huma.Operation, who access) []errorAnswer {
	if who.share {
		return append([]errorAnswer{
			{400, "The query is not valid UTF-8.", Error{Message: "token: not valid UTF-8"}},
			{404, "The link does not work: revoked, expired, or never created.", *publicError(errNoShare)},
		}, temporary...)
	}
	all := []errorAnswer{
		{400, "Bad or missing fields; the message names them.", Error{Message: "name is required"}},
		{401, "The token is missing, invalid or expired.", Error{Message: "the token is invalid or has expired: sign in again", Code: "INVALID_TOKEN"}},
	}
	if who.workspace != fromNowhere {
		about := "Not a member, or the role is too low."
		if who.people {
			about = "Not a member, the role is too low, or the operation is not for API keys."
		}
		all = append(all, errorAnswer{403, about, Error{Message: "you are not a member of this workspace", Code: "NOT_A_MEMBER"}})
	}
	if who.people && who.workspace == fromNowhere {
		all = append(all, errorAnswer{403, "The operation is not for API keys.", Error{Message: "an API key cannot administer workspaces, members or keys, decide about tool calls, share documents, sign in to providers or connect them: use a person's token", Code: "PERSON_NEEDED"}})
	}
	if strings.Contains(op.Path, "{") {
		all = append(all, errorAnswer{404, "Does not exist, or is not visible to the caller; the answer does not distinguish the two.", Error{Message: "no such session"}})
	}
	if op.Method != "GET" {
		all = append(all, errorAnswer{409, "The request conflicts with the current state.", Error{Message: "a run of this session is active"}})
	}
	if slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == "If-Match" }) {
		all = append(all, errorAnswer{412, "The document is not in the state that If-Match requires.", Error{Message: "the document has changed: it is at sequence 12 now; read it again", Code: fault.CodePrecondition}})
	}
	if op.RequestBody != nil {
		all = append(all, errorAnswer{413, "The body is too large.", Error{Message: "the body is too large: the limit is 1048576 bytes", Code: "TOO_LARGE"}})
	}
	return append(all, temporary...)
}

// temporary are the error statuses of every operation.
var temporary = []errorAnswer{
	{429, "Too many requests or streams; Retry-After says how long to wait.", Error{Message: "you make too many requests: wait 2s", Code: "RATE_LIMITED"}},
	{500, "An internal error, which is logged and not shown.", Error{Message: "internal error"}},
	{503, "A service is unavailable; the same request may work later.", Error{Message: "a service cannot be reached: try again in a moment"}},
}

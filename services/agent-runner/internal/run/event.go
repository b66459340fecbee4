package run

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// maxEventContent bounds the content of a user_message event. Larger content has files in
// it, which viewers read with the session.
const maxEventContent = 256 << 10

// UserMessageEvent returns the body of a user_message event.
func UserMessageEvent(message id.Message, by id.Member, content json.RawMessage, at time.Time) *runv1.Event_UserMessage {
	if len(content) > maxEventContent {
		content = withoutFiles(content)
	}
	return &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{
		MessageId: message.String(), CreatedBy: by.String(), ContentJson: string(content), CreatedAt: timestamppb.New(at),
	}}
}

// withoutFiles returns content with the data of its file parts removed.
func withoutFiles(content json.RawMessage) json.RawMessage {
	parts, err := modelmsg.Parse(content)
	if err != nil {
		return json.RawMessage(`[]`)
	}
	type file struct {
		Type      string `json:"type"`
		MediaType string `json:"mediaType"`
		Data      string `json:"data"`
		Filename  string `json:"filename,omitempty"`
	}
	out := make([]any, len(parts))
	for i := range parts {
		out[i] = parts[i].Raw
		if parts[i].Type == modelmsg.File {
			out[i] = file{Type: modelmsg.File, MediaType: parts[i].MediaType, Filename: parts[i].Filename}
		}
	}
	b, err := json.Marshal(out)
	if err != nil || len(b) > maxEventContent {
		return json.RawMessage(`[]`) // too much text; viewers read it with the session
	}
	return b
}

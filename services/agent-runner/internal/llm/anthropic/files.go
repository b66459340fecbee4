package anthropic

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// user writes a user message. A file that the model cannot read is an error in the newest
// message and becomes a remark in an older one.
func (b *builder) user(w *writer, t *llm.Turn) error {
	newest := b.newest(t)
	said := false
	for i := range t.Parts {
		p := &t.Parts[i]
		switch p.Type {
		case modelmsg.Text:
			said = said || strings.TrimSpace(p.Text) != ""
			w.text("user", p.Text)
		case modelmsg.File:
			said = true
			block, problem := fileBlock(p)
			if problem != "" && newest {
				return llm.Refuse(llm.KindInvalid, "The file %s cannot be sent to this model: %s.", llm.FileLabel(p), problem)
			}
			if problem != "" {
				w.text("user", llm.FileRemark(p))
				continue
			}
			w.block("user")
			w.out = append(w.out, block...)
			w.end()
		}
	}
	if !said {
		w.text("user", "(empty message)")
	}
	return nil
}

// newest reports whether no user turn follows t.
func (b *builder) newest(t *llm.Turn) bool {
	for i := len(b.turns) - 1; i >= 0; i-- {
		if b.turns[i].Role == llm.User {
			return &b.turns[i] == t
		}
	}
	return false
}

// fileBlock converts a file part, or returns the reason why it cannot.
func fileBlock(p *modelmsg.Part) (block []byte, problem string) {
	media := p.MediaType
	if media == "image/jpg" {
		media = "image/jpeg"
	}
	switch {
	case media == "image/jpeg" || media == "image/png" || media == "image/gif" || media == "image/webp",
		media == "image/*" && p.IsURL():
		block = appendSource([]byte(`{"type":"image","source":`), media, p)
		return append(block, '}'), ""
	case media == "application/pdf":
		block = appendSource([]byte(`{"type":"document","source":`), media, p)
		return append(appendTitle(block, p), '}'), ""
	case llm.IsText(media) && p.IsURL():
		return nil, "text files have to be attached, not linked"
	case llm.IsText(media):
		text, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil || !utf8.Valid(text) {
			return nil, "it is not UTF-8 text"
		}
		if strings.TrimSpace(string(text)) == "" {
			return nil, "it is empty"
		}
		block = jscan.AppendString([]byte(`{"type":"document","source":{"type":"text","media_type":"text/plain","data":`), text)
		return append(appendTitle(append(block, '}'), p), '}'), ""
	}
	return nil, "it reads images (PNG, JPEG, GIF, WebP), PDF and text, not " + media
}

func appendSource(dst []byte, media string, p *modelmsg.Part) []byte {
	if p.IsURL() {
		dst = append(dst, `{"type":"url","url":`...)
	} else {
		dst = append(dst, `{"type":"base64","media_type":`...)
		dst = jscan.AppendString(dst, media)
		dst = append(dst, `,"data":`...)
	}
	dst = jscan.AppendString(dst, p.Data)
	return append(dst, '}')
}

func appendTitle(dst []byte, p *modelmsg.Part) []byte {
	if p.Filename == "" {
		return dst
	}
	dst = append(dst, `,"title":`...)
	return jscan.AppendString(dst, p.Filename)
}

// appendRich converts the content variant of a tool output, which imported histories may have:
// texts and images stay, the rest becomes a remark.
func appendRich(dst, value []byte) []byte {
	r := jscan.NewReader(value)
	if r.Kind() != jscan.Array {
		return jscan.AppendString(dst, value)
	}
	r.Array()
	dst = append(dst, '[')
	n := 0
	for r.Elem() {
		item := r.Skip()
		block := richBlock(item)
		if block == nil {
			continue
		}
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		dst = append(dst, block...)
	}
	return append(dst, ']')
}

func richBlock(item []byte) []byte {
	if jscan.MemberString(item, "type") == "text" {
		text := jscan.MemberString(item, "text")
		if strings.TrimSpace(text) == "" {
			return nil
		}
		return append(jscan.AppendString([]byte(`{"type":"text","text":`), text), '}')
	}
	p := llm.RichFile(item)
	if block, problem := fileBlock(&p); problem == "" && strings.HasPrefix(p.MediaType, "image/") {
		return block
	}
	return append(jscan.AppendString([]byte(`{"type":"text","text":`), llm.FileRemark(&p)), '}')
}

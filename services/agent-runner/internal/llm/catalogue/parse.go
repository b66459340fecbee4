package catalogue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// file is the form of models.json and of an operator's own.
type file struct {
	Models []Model
	// ServerTools are the definitions of tools that providers run, by provider and
	// name, as they go into a request.
	ServerTools map[string]map[string]json.RawMessage
}

// read reads a file. Its error lists the problems of all models.
func read(text []byte) (*file, error) {
	var src struct {
		Models      []json.RawMessage                     `json:"models"`
		ServerTools map[string]map[string]json.RawMessage `json:"serverTools"`
	}
	// The whole file first: only its errors have a position.
	err := json.Unmarshal(text, &json.RawMessage{})
	if err == nil {
		err = strict(text, &src)
	}
	if err != nil {
		return nil, at(text, 0, text, "", err)
	}
	f := &file{ServerTools: src.ServerTools}
	var problems []error
	place := 0
	for i, raw := range src.Models {
		// The file has the entries verbatim and in this order.
		place += max(bytes.Index(text[place:], raw), 0)
		m, field, err := readModel(raw)
		if err != nil {
			problems = append(problems, at(text, place, raw, path(i, field), err))
		}
		f.Models = append(f.Models, m)
		place += len(raw)
	}
	return f, errors.Join(problems...)
}

// readModel decodes an entry. With an error it returns the wrong field.
func readModel(raw []byte) (m Model, field string, err error) {
	var former struct {
		Price json.RawMessage `json:"price"`
	}
	if err := json.Unmarshal(raw, &former); err == nil && former.Price != nil {
		return m, "price", errors.New("prices moved to MODEL_PRICES: remove the price here and add it to the file that MODEL_PRICES names for agent-runner and credential-broker, in that file's form (provider, model, input, output, cache_read, cache_write)")
	}
	if err := strict(raw, &m); err != nil {
		return m, "", err
	}
	field, err = m.check()
	return m, field, err
}

// check returns the first wrong field and the reason.
func (m *Model) check() (field string, err error) {
	switch {
	case m.Provider == "" || m.ID == "":
		return "", errors.New("provider and id are needed")
	case m.Context <= 0:
		return "context", fmt.Errorf("%d is too few tokens: say how many %s takes, prompt and answer together", m.Context, m.ID)
	case m.MaxOutput <= 0:
		return "maxOutput", fmt.Errorf("%d is too few tokens: say how many %s can write", m.MaxOutput, m.ID)
	case m.DefaultOutput < 0 || m.DefaultOutput > m.MaxOutput:
		return "defaultOutput", fmt.Errorf("%d is out of range: use 0 to %d, which is maxOutput", m.DefaultOutput, m.MaxOutput)
	}
	return "", nil
}

func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func path(i int, field string) string {
	return strings.TrimSuffix(fmt.Sprintf("models[%d].%s", i, field), ".")
}

// at prefixes an error about a part of the file, which begins at place, with line and field.
func at(text []byte, place int, part []byte, path string, err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		place += int(min(e.Offset, int64(len(part))))
	} else if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		place += int(min(e.Offset, int64(len(part))))
		path = strings.Trim(path+"."+e.Field, ".")
		err = fmt.Errorf("%s does not belong here", e.Value)
	} else if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
		place += max(bytes.Index(part, []byte(name)), 0)
		path = strings.Trim(path+"."+strings.Trim(name, `"`), ".")
		err = errors.New("there is no such field")
	} else if _, field, ok := strings.Cut(path, "]."); ok {
		place += max(bytes.Index(part, []byte(`"`+field+`"`)), 0)
	}
	if path != "" {
		path += ": "
	}
	return fmt.Errorf("line %d: %s%w", 1+bytes.Count(text[:min(place, len(text))], []byte("\n")), path, err)
}

package mcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
)

// Command says how a server on standard input is started. Only the operator configures these: a
// command of a workspace would run with our rights.
type Command struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	// Type is stdio or empty, as in the files of other programs.
	Type string `json:"type"`
	// Workspaces may use the server; nil means all.
	Workspaces []id.Workspace `json:"workspaces"`
	// Read and Write are folders and files outside of /usr that the server may use. Folders in
	// Write are created. The text {workspace} in Args, Env and Write stands for the
	// workspace's id.
	Read  []string `json:"read"`
	Write []string `json:"write"`
	// Network lets the server reach the network, as far as we can ourselves.
	Network bool `json:"network"`
	// Sandbox is false to run the server without bubblewrap, with our rights.
	Sandbox *bool `json:"sandbox"`
	// MemoryMiB bounds the memory of each process, and Processes their number in the sandbox.
	MemoryMiB uint64 `json:"memory_mib"`
	Processes uint64 `json:"processes"`

	name string
}

const (
	defaultMemoryMiB = 1024
	defaultProcesses = 128
	maxOperatorFile  = 1 << 20
)

// Operator has the operator's servers, by name.
type Operator []Command

// LoadOperator reads the operator's servers from a JSON file: {"mcpServers": {"name": {…}}}. An
// empty path means that there are none.
func LoadOperator(path string) (Operator, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	text, err := io.ReadAll(io.LimitReader(f, maxOperatorFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxOperatorFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxOperatorFile)
	}
	all, err := parseOperator(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func parseOperator(text []byte) (all Operator, err error) {
	var file struct {
		Servers map[string]Command `json:"mcpServers"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf(`%w: use {"mcpServers": {"name": {"command": "…", "args": ["…"]}}}; owners of workspaces add servers that have a URL`, err)
	}
	for name, c := range file.Servers {
		c.name = name
		if err := c.validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, c)
	}
	if len(all) > maxServers {
		return nil, fmt.Errorf("it has %d servers: %d are allowed", len(all), maxServers)
	}
	slices.SortFunc(all, func(a, b Command) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func (c *Command) validate() error {
	if c.MemoryMiB == 0 {
		c.MemoryMiB = defaultMemoryMiB
	}
	if c.Processes == 0 {
		c.Processes = defaultProcesses
	}
	if err := checkName(c.name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	switch {
	case c.Type != "" && c.Type != "stdio":
		return fmt.Errorf("type: %q is not supported: use stdio; owners of workspaces add servers that have a URL", c.Type)
	case c.Command == "":
		return errors.New("command is missing")
	}
	for _, path := range slices.Concat(c.Read, c.Write) {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			return fmt.Errorf("read, write: %q is not a clean absolute path below /", path)
		}
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("env: %q cannot be set", name)
		}
	}
	return nil
}

// sandboxed reports whether the server runs in a sandbox.
func (c *Command) sandboxed() bool { return c.Sandbox == nil || *c.Sandbox }

// digest changes with whatever may change the server's tools. It leaves out the environment,
// which may hold secrets.
func (c *Command) digest() string {
	public := *c
	public.Env = nil
	b, err := json.Marshal(public)
	if err != nil { // strings, numbers and UUIDs
		return ""
	}
	sum := sha256.Sum256(b)
	return "stdio:" + hex.EncodeToString(sum[:16])
}

// operatorSpace is the namespace of the ids of the operator's servers.
var operatorSpace = uuid.MustParse("6f2a4f0e-2f0c-4b52-9a0e-0b1d3f0c7a51")

// of returns the server as a workspace has it.
func (c *Command) of(ws id.Workspace) Server {
	return Server{
		Workspace: ws, ID: ServerID{id.Derive(operatorSpace, ws.String(), c.name)}, Name: c.name, URL: c.digest(), Operator: true, command: c,
	}
}

// allowed returns the servers that a workspace may use, by id.
func (o Operator) allowed(ws id.Workspace) map[ServerID]Server {
	all := map[ServerID]Server{}
	for i := range o {
		if c := &o[i]; c.Workspaces == nil || slices.Contains(c.Workspaces, ws) {
			s := c.of(ws)
			all[s.ID] = s
		}
	}
	return all
}

// has reports whether the operator offers a workspace a server of this name.
func (o Operator) has(ws id.Workspace, name string) bool {
	return slices.ContainsFunc(o, func(c Command) bool {
		return c.name == name && (c.Workspaces == nil || slices.Contains(c.Workspaces, ws))
	})
}

// expand returns the text for a workspace.
func expand(text string, ws id.Workspace) string {
	return strings.ReplaceAll(text, "{workspace}", ws.String())
}

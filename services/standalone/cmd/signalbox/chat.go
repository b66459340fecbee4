package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone"
	"signalbox.dev/services/standalone/internal/chat"
	"signalbox.dev/services/standalone/internal/datadir"
)

type chatSettings struct {
	URL       string      `env:"SIGNALBOX_URL" doc:"Address of another Signalbox."`
	Token     conf.Secret `env:"SIGNALBOX_TOKEN" doc:"Access token or API key for it."`
	Workspace string      `env:"SIGNALBOX_WORKSPACE" doc:"Workspace id there."`
}

func (c *cli) chat() *cobra.Command {
	var (
		data, session, model, provider, preset string
		tools                                  []string
		asJSON                                 bool
	)
	cmd := &cobra.Command{
		Use:   "chat [message]",
		Short: "Chat with an agent in the terminal",
		Long: `Sends messages and shows the answers and tool calls as they arrive. With an argument it
sends that message; otherwise it reads messages, one per line, until the end of the input.
Ctrl-C stops the answer, or the program if it is at the prompt. A broken connection is
resumed without a gap. At a terminal answers are formatted, and /help lists commands; in a
pipe everything is plain text.
` + remoteHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.client(cmd, data)
			if err != nil {
				return err
			}
			if provider == "" {
				if provider, model, err = splitModel(cmd.Context(), client, model); err != nil {
					return err
				}
			}
			fields := map[string]any{}
			for name, value := range map[string]string{"model": model, "provider": provider, "preset": preset} {
				if value != "" {
					fields[name] = value
				}
			}
			if len(tools) > 0 {
				fields["tools"] = tools
			}
			message := strings.Join(args, " ")
			if isTerminal(os.Stdin) && isTerminal(os.Stdout) && c.variable("TERM") != "dumb" && !asJSON {
				screen := chat.Screen{Client: client, Session: session, Fields: fields, Message: message, In: os.Stdin, Out: os.Stdout, Environ: c.environ}
				return screen.Run(cmd.Context())
			}
			return c.plainChat(cmd.Context(), client, session, fields, message, asJSON)
		},
	}
	dataFlag(cmd, &data)
	cmd.Flags().StringVar(&session, "session", "", "resume this session: its id, or the beginning or end of it")
	cmd.Flags().StringVar(&provider, "provider", "", "provider of a new session: "+strings.Join(admin.KeyProviders(), ", "))
	cmd.Flags().StringVar(&model, "model", "", "model of a new session, or provider/model")
	cmd.Flags().StringVar(&preset, "preset", "", "preset of a new session: workspace, assistant, explorer, browser")
	cmd.Flags().StringSliceVar(&tools, "tools", nil, "tools of a new session, such as 'doc_*,mcp__linear__*'; --tools=-mcp__linear__* takes the preset's tools but these")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	oneOf(cmd, "provider", admin.KeyProviders()...)
	oneOf(cmd, "preset", "workspace", "assistant", "explorer", "browser")
	_ = cmd.RegisterFlagCompletionFunc("session", c.completeIDs("sessions")) // only an unknown flag is an error
	return cmd
}

// splitModel separates the provider from a model's name, as `sessions list` shows them. A
// listed model whose name contains a slash is not split.
func splitModel(ctx context.Context, client *chat.Client, name string) (provider, model string, err error) {
	before, after, ok := strings.Cut(name, "/")
	if !ok {
		return "", name, nil
	}
	all, err := client.Models(ctx)
	if err != nil {
		return "", "", err
	}
	model = name
	for _, m := range all.Models {
		switch {
		case m.ID == name:
			return "", name, nil
		case m.Provider == before:
			provider, model = before, after
		}
	}
	for _, p := range all.Problems { // these have accounts too
		if p.Provider == before {
			provider, model = before, after
		}
	}
	return provider, model, nil
}

// plainChat chats in a pipe, or at a terminal that can only show text.
func (c *cli) plainChat(ctx context.Context, client *chat.Client, session string, fields map[string]any, message string, asJSON bool) error {
	if session == "" {
		made, err := client.CreateSession(ctx, fields)
		if err != nil {
			return err
		}
		session = made.ID
	} else {
		var err error
		if session, err = client.Find(ctx, "sessions", session); err != nil {
			return err
		}
	}
	terminal := &chat.Terminal{Client: client, Session: session, Out: c.out, JSON: asJSON, Style: c.style()}
	if message != "" {
		return terminal.Say(ctx, message)
	}
	prompt := ""
	if isTerminal(os.Stdin) && !asJSON {
		fmt.Fprintf(c.out, "Session %s. Ctrl-C stops an answer; /quit or Ctrl-D ends.\n", session)
		prompt = "> "
	}
	return terminal.Talk(ctx, os.Stdin, prompt)
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// client returns a client for the Signalbox that the environment or the data folder names.
func (c *cli) client(cmd *cobra.Command, data string) (*chat.Client, error) {
	var s chatSettings
	if err := c.settings(&s); err != nil {
		return nil, err
	}
	client := &chat.Client{
		URL: s.URL, Token: s.Token.Reveal(), Workspace: s.Workspace,
		HTTP:   &http.Client{Transport: &http.Transport{ResponseHeaderTimeout: time.Minute}},
		Notice: func(format string, args ...any) { fmt.Fprintf(c.err, "\n["+format+"]\n", args...) },
	}
	if s.URL != "" {
		if s.Token == "" || s.Workspace == "" {
			return nil, process.Usage("SIGNALBOX_URL is set: set SIGNALBOX_TOKEN and SIGNALBOX_WORKSPACE too")
		}
		return client, nil
	}
	running, alive, err := datadir.Look(data)
	if err != nil {
		return nil, err
	}
	if !alive {
		return nil, fmt.Errorf("no Signalbox runs in %s: start one with `signalbox up --data %s`, or choose another folder with --data", data, data)
	}
	log, err := c.log()
	if err != nil {
		return nil, err
	}
	token, err := standalone.NewToken(cmd.Context(), standalone.TokenOptions{Data: data, Role: identity.Owner, Log: log})
	if err != nil {
		return nil, err
	}
	if cmd.Flag("data").Changed {
		client.Flags = " --data " + quoted(data)
	}
	client.URL, client.Token, client.Workspace = running.URL, token.Token, token.Workspace.String()
	return client, nil
}

// quoted quotes a word for a shell.
func quoted(word string) string {
	if !strings.ContainsFunc(word, func(r rune) bool { return !unicode.In(r, unicode.L, unicode.N) && !strings.ContainsRune("/._-", r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

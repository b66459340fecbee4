package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone"
	"signalbox.dev/services/standalone/internal/chat"
	"signalbox.dev/services/standalone/internal/datadir"
)

type chatSettings struct {
	URL       string      `env:"SIGNALBOX_URL" doc:"Address of a Signalbox elsewhere."`
	Token     conf.Secret `env:"SIGNALBOX_TOKEN" doc:"Access token or API key for it."`
	Workspace string      `env:"SIGNALBOX_WORKSPACE" doc:"Workspace id there."`
}

func (c *cli) chat() *cobra.Command {
	var (
		data, session, model, provider, preset string
		asJSON                                 bool
	)
	cmd := &cobra.Command{
		Use:   "chat [message]",
		Short: "Chat with an agent in the terminal",
		Long: `Sends messages and shows the answers as they come, with the tools that are used.
With a message it sends that one; otherwise it reads messages, a line each, until
the end of the input. Ctrl-C stops the answer, and at the prompt the program. When
the connection breaks it is resumed, without a gap.

It finds the Signalbox that runs in the data folder. SIGNALBOX_URL, SIGNALBOX_TOKEN
and SIGNALBOX_WORKSPACE name one elsewhere.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.client(cmd, data)
			if err != nil {
				return err
			}
			terminal := &chat.Terminal{Client: client, Session: session, Out: c.out, JSON: asJSON, Colour: isTerminal(os.Stdout) && !asJSON}
			if session == "" {
				fields := map[string]any{}
				for name, value := range map[string]string{"model": model, "provider": provider, "preset": preset} {
					if value != "" {
						fields[name] = value
					}
				}
				if terminal.Session, err = client.CreateSession(cmd.Context(), fields); err != nil {
					return err
				}
			}
			if len(args) > 0 {
				return terminal.Say(cmd.Context(), strings.Join(args, " "))
			}
			prompt := ""
			if isTerminal(os.Stdin) && !asJSON {
				fmt.Fprintf(c.out, "Session %s. Ctrl-C stops an answer; /quit or Ctrl-D ends.\n", terminal.Session)
				prompt = "> "
			}
			return terminal.Talk(cmd.Context(), os.Stdin, prompt)
		},
	}
	dataFlag(cmd, &data)
	cmd.Flags().StringVar(&session, "session", "", "go on with this session")
	cmd.Flags().StringVar(&provider, "provider", "", "provider of a new session: anthropic, openai, openrouter")
	cmd.Flags().StringVar(&model, "model", "", "model of a new session")
	cmd.Flags().StringVar(&preset, "preset", "", "preset of a new session: workspace, assistant, explorer, browser")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	return cmd
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// client returns a client of the Signalbox that the environment or the data folder names.
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
			return nil, process.Usage("SIGNALBOX_URL needs SIGNALBOX_TOKEN and SIGNALBOX_WORKSPACE beside it")
		}
		return client, nil
	}
	dir, err := datadir.Open(data)
	if err != nil {
		return nil, err
	}
	running, alive, err := dir.Running()
	if err != nil {
		return nil, err
	}
	if !alive {
		return nil, fmt.Errorf("no Signalbox runs in %s: start one with `signalbox up --data %s`, or name another with --data", data, data)
	}
	log, err := c.log()
	if err != nil {
		return nil, err
	}
	token, err := standalone.NewToken(cmd.Context(), standalone.TokenOptions{Data: data, Role: identity.Owner, Log: log})
	if err != nil {
		return nil, err
	}
	client.URL, client.Token, client.Workspace = running.URL, token.Token, token.Workspace.String()
	return client, nil
}

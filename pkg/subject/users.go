package subject

import (
	"bytes"
	"fmt"
	"strings"
)

// Admin is the user that creates and updates streams (bus.Apply): standalone
// and the migrate command. No service has it.
const Admin = "admin"

// Names of the services' users on the bus.
const (
	Gateway          = "gateway"
	AgentRunner      = "agent-runner"
	ToolExecutor     = "tool-executor"
	DocumentSync     = "document-sync"
	CredentialBroker = "credential-broker"
)

// User is one account holder on the bus and all that it may do there.
type User struct {
	Name      string
	Publish   []string // subjects it may publish to
	Subscribe []string // subjects it may subscribe to
}

// InboxPrefix returns where a user receives answers. Nobody else may listen
// there: an answer can hold what the asker alone may read.
func InboxPrefix(user string) string { return "_INBOX_" + user }

// PasswordVariable returns the environment variable that the deployed server
// reads a user's password from.
func PasswordVariable(user string) string {
	return strings.ToUpper(strings.ReplaceAll(user, "-", "_")) + "_NATS_PASSWORD"
}

// Users returns who may do what on the streams of t. It is the only such list:
// the embedded server takes it as it is, and deploy/nats/accounts.conf is
// written from it.
//
// No service administers streams. To publish durably a service needs the
// stream's subject and its own inbox; to consume, what consume lists; to read
// the log, what readLog lists, and for no other stream.
func Users(t Topology) []User {
	log := readLog(t)
	users := []User{
		{
			Name:      Admin,
			Publish:   []string{"$JS.API.>"},
			Subscribe: nil,
		},
		{
			Name:      Gateway,
			Publish:   log,
			Subscribe: []string{AllLive},
		},
		{
			Name:      AgentRunner,
			Publish:   join([]string{AllRuns, AllTools, AllEvents, "ctl.>"}, consume(Runs, Runners), log),
			Subscribe: []string{AllCtlRuns, AllToolDone},
		},
		{
			Name:      ToolExecutor,
			Publish:   join([]string{AllToolDone}, consume(Tools, Executors)),
			Subscribe: []string{AllToolCancels},
		},
		{
			Name:      DocumentSync,
			Publish:   []string{AllDocUpdates, AllAwareness},
			Subscribe: []string{AllDocUpdates, AllAwareness},
		},
		{
			Name:      CredentialBroker,
			Publish:   []string{"cred.>"},
			Subscribe: []string{"cred.>"},
		},
	}
	for i, u := range users {
		users[i].Subscribe = append(u.Subscribe, InboxPrefix(u.Name)+".>")
	}
	return users
}

// consume lists what a member of a shared consumer publishes: it looks the
// consumer up, asks for messages, and acknowledges.
func consume(stream, consumer string) []string {
	return []string{
		fmt.Sprintf("$JS.API.CONSUMER.INFO.%s.%s", stream, consumer),
		fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, consumer),
		fmt.Sprintf("$JS.ACK.%s.%s.>", stream, consumer),
	}
}

// readLog lists what a reader of the run log publishes: it asks for stored
// messages, and for where a stream stands and since when it is there.
func readLog(t Topology) []string {
	var out []string
	for p := range t.Partitions {
		out = append(out, "$JS.API.DIRECT.GET."+EventStream(p), "$JS.API.STREAM.INFO."+EventStream(p))
	}
	return out
}

func join(lists ...[]string) []string {
	var out []string
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// Account is the NATS account that all users share.
const Account = "SIGNALBOX"

// AccountsConf writes users as a part of a nats-server configuration file.
// password gives the text that stands for a user's password there: a quoted
// string, or a variable such as $GATEWAY_NATS_PASSWORD.
func AccountsConf(users []User, password func(user string) string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "accounts {\n  %s {\n    jetstream: enabled\n    users: [\n", Account)
	for _, u := range users {
		fmt.Fprintf(&b, "      {\n        user: %q\n        password: %s\n        permissions: {\n", u.Name, password(u.Name))
		writeAllow(&b, "publish", u.Publish)
		writeAllow(&b, "subscribe", u.Subscribe)
		b.WriteString("        }\n      }\n")
	}
	b.WriteString("    ]\n  }\n}\n")
	return b.Bytes()
}

func writeAllow(b *bytes.Buffer, what string, subjects []string) {
	fmt.Fprintf(b, "          %s: { allow: [\n", what)
	for _, s := range subjects {
		fmt.Fprintf(b, "            %q\n", s)
	}
	b.WriteString("          ] }\n")
}

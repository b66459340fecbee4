package subject

import (
	"fmt"
	"slices"
	"strings"
)

// Admin is the user that creates and updates streams (bus.Apply), for standalone and the
// migrate command. No service has its password.
const Admin = "admin"

// The services' users.
const (
	Gateway          = "gateway"
	AgentRunner      = "agent-runner"
	ToolExecutor     = "tool-executor"
	DocumentSync     = "document-sync"
	CredentialBroker = "credential-broker"
)

// User is a service or the administrator on the bus: what it may do in its account, and what
// crosses the border of that account.
//
// Each user has an account of its own, because the server checks a message's subject and not
// its reply subject: in a shared account, a request could have its reply sent to any subject,
// of another service or of JetStream's API. The streams are in the administrator's account. A
// service reaches them by the requests of Calls, and the server delivers the replies in the
// service's account.
type User struct {
	Name      string
	Publish   []string // subjects it may publish to
	Subscribe []string // subjects it may subscribe to

	Calls    []Call // requests that it may make of the streams' account; it may publish them too
	Receives []Feed // subjects of other accounts that it receives
}

// Call is a request that crosses into the streams' account.
type Call struct {
	Subject string
	Many    bool // there may be more than one reply
}

// Feed is a subject of another user's account.
type Feed struct {
	From    string // the user
	Subject string
}

// InboxPrefix returns the prefix of a user's reply subjects. Nobody else may subscribe to
// them: a reply may contain what only that user may read.
func InboxPrefix(user string) string { return "_INBOX_" + user }

// PasswordVariable returns the environment variable of a user's password on a deployed
// server.
func PasswordVariable(user string) string { return variable(user) + "_NATS_PASSWORD" }

func variable(user string) string {
	return strings.ToUpper(strings.ReplaceAll(user, "-", "_"))
}

// Users returns who may do what on the streams of t. It is the only such list: the embedded
// server uses it, and deploy/nats/accounts.conf is generated from it.
//
// No service administers streams. A service needs a stream's subject to publish durably, the
// subjects of consume to consume, and those of readLog to read the log. The owner of a lost
// stream creates it again (own). Creating an existing stream has no effect. Creating an
// existing consumer can change its settings, so a service's password gives power over its own
// consumer, but no other.
func Users(t Topology) []User {
	log := readLog(t)
	users := []User{
		{
			Name:    Admin,
			Publish: []string{"$JS.API.>"},
		},
		{
			Name:     Gateway,
			Calls:    slices.Concat([]Call{info}, log),
			Receives: []Feed{{Admin, AllLive}},
		},
		{
			Name:      AgentRunner,
			Publish:   []string{"ctl.>"},
			Subscribe: []string{AllCtlRuns, Swept(AgentRunner)},
			Calls:     slices.Concat([]Call{info, {Subject: AllRuns}, {Subject: AllTools}, {Subject: AllEvents}}, consume(Runs, Runners), log, own(t.Queue(Runs)), own(t.Log())),
			Receives:  []Feed{{ToolExecutor, AllToolDone}},
		},
		{
			Name:      ToolExecutor,
			Publish:   []string{AllToolDone, Swept(ToolExecutor)},
			Subscribe: []string{Swept(ToolExecutor)},
			Calls:     slices.Concat([]Call{info}, consume(Tools, Executors), own(t.Queue(Tools))),
			Receives:  []Feed{{AgentRunner, AllToolCancels}},
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
		for _, c := range u.Calls {
			users[i].Publish = append(users[i].Publish, c.Subject)
		}
		for _, f := range u.Receives {
			users[i].Subscribe = append(users[i].Subscribe, f.Subject)
		}
		users[i].Subscribe = append(users[i].Subscribe, InboxPrefix(u.Name)+".>")
	}
	return users
}

// info asks whether JetStream works: only the leader of a cluster replies. An account without
// it would get JetStream's whole API from the server, for itself.
var info = Call{Subject: "$JS.API.INFO"}

// consume lists the requests of a member of a shared consumer: to look it up, to fetch
// messages, and to ack them.
func consume(stream, consumer string) []Call {
	return []Call{
		{Subject: fmt.Sprintf("$JS.API.CONSUMER.INFO.%s.%s", stream, consumer)},
		{Subject: fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, consumer), Many: true},
		{Subject: fmt.Sprintf("$JS.ACK.%s.%s.>", stream, consumer)},
	}
}

// own lists the requests to create lost streams and their consumers.
func own(streams []Stream) []Call {
	var out []Call
	for _, s := range streams {
		out = append(out, Call{Subject: "$JS.API.STREAM.CREATE." + s.Config.Name})
		for _, c := range s.Consumers {
			out = append(out, Call{Subject: fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.%s.%s", s.Config.Name, c.Durable, c.FilterSubject)})
		}
	}
	return out
}

// readLog lists the requests of a reader of the run log: for stored messages and for the state
// of a stream.
func readLog(t Topology) []Call {
	var out []Call
	for p := range t.Partitions {
		out = append(out,
			Call{Subject: "$JS.API.DIRECT.GET." + EventStream(p), Many: true},
			Call{Subject: "$JS.API.STREAM.INFO." + EventStream(p)})
	}
	return out
}

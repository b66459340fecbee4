package subject

import (
	"fmt"
	"slices"
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

// User is one service, or the administrator, on the bus: all that it may do in its
// account, and what crosses the border of that account.
//
// Each user has an account of its own, because the server checks a message's subject and
// not its reply: who could ask anything in a shared account could have the answer sent to
// any subject there, of another service or of JetStream's API. The streams are in the
// administrator's account, and a service reaches them by the requests of Calls, whose
// answers the server delivers in the account that asked.
type User struct {
	Name      string
	Publish   []string // subjects it may publish to
	Subscribe []string // subjects it may subscribe to

	Calls []Call // requests that it may make of the streams' account; it may publish them too
	Hears []Feed // what other accounts publish and this one gets
}

// Call is a kind of request that crosses into the streams' account.
type Call struct {
	Subject string
	Many    bool // it may have more than one answer
}

// Feed is a subject of another user's account.
type Feed struct {
	From    string // the user
	Subject string
}

// InboxPrefix returns where a user receives answers. Nobody else may listen
// there: an answer can hold what the asker alone may read.
func InboxPrefix(user string) string { return "_INBOX_" + user }

// PasswordVariable returns the environment variable that the deployed server
// reads a user's password from.
func PasswordVariable(user string) string { return variable(user) + "_NATS_PASSWORD" }

func variable(user string) string {
	return strings.ToUpper(strings.ReplaceAll(user, "-", "_"))
}

// Users returns who may do what on the streams of t. It is the only such list:
// the embedded server takes it as it is, and deploy/nats/accounts.conf is
// written from it.
//
// No service administers streams. To publish durably a service needs the
// stream's subject; to consume, what consume lists; to read the log, what
// readLog lists, and for no other stream. What a server lost is made again by the
// service that works with it (own). Creating a stream that exists has no effect; creating
// a consumer that exists can change its settings, so that a service's password gives power
// over its own consumer, and over nobody else's.
func Users(t Topology) []User {
	log := readLog(t)
	users := []User{
		{
			Name:    Admin,
			Publish: []string{"$JS.API.>"},
		},
		{
			Name:  Gateway,
			Calls: slices.Concat([]Call{look}, log),
			Hears: []Feed{{Admin, AllLive}},
		},
		{
			Name:      AgentRunner,
			Publish:   []string{"ctl.>"},
			Subscribe: []string{AllCtlRuns},
			Calls:     slices.Concat([]Call{look, {Subject: AllRuns}, {Subject: AllTools}, {Subject: AllEvents}}, consume(Runs, Runners), log, own(t.Queue(Runs)), own(t.Log())),
			Hears:     []Feed{{ToolExecutor, AllToolDone}},
		},
		{
			Name:    ToolExecutor,
			Publish: []string{AllToolDone},
			Calls:   slices.Concat([]Call{look}, consume(Tools, Executors), own(t.Queue(Tools))),
			Hears:   []Feed{{AgentRunner, AllToolCancels}},
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
		for _, f := range u.Hears {
			users[i].Subscribe = append(users[i].Subscribe, f.Subject)
		}
		users[i].Subscribe = append(users[i].Subscribe, InboxPrefix(u.Name)+".>")
	}
	return users
}

// look asks whether JetStream works: only the leader of a cluster's servers answers. An
// account without it would get all of JetStream's API from the server, in its own name.
var look = Call{Subject: "$JS.API.INFO"}

// consume lists what a member of a shared consumer publishes: it looks the
// consumer up, asks for messages, and acknowledges.
func consume(stream, consumer string) []Call {
	return []Call{
		{Subject: fmt.Sprintf("$JS.API.CONSUMER.INFO.%s.%s", stream, consumer)},
		{Subject: fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, consumer), Many: true},
		{Subject: fmt.Sprintf("$JS.ACK.%s.%s.>", stream, consumer)},
	}
}

// own lists what the owner of streams publishes to make them where they were lost.
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

// readLog lists what a reader of the run log publishes: it asks for stored
// messages, and for where a stream stands and since when it is there.
func readLog(t Topology) []Call {
	var out []Call
	for p := range t.Partitions {
		out = append(out,
			Call{Subject: "$JS.API.DIRECT.GET." + EventStream(p), Many: true},
			Call{Subject: "$JS.API.STREAM.INFO." + EventStream(p)})
	}
	return out
}

package subject

import (
	"bytes"
	"fmt"
	"strings"
)

// Account returns the NATS account of a user. The administrator's account has the streams,
// whose files are in a folder of its name.
func Account(user string) string {
	if user == Admin {
		return "SIGNALBOX"
	}
	return variable(user)
}

// AccountsConf returns the users as part of a nats-server configuration file. password returns
// a user's password for that file: a quoted string, or a variable such as
// $GATEWAY_NATS_PASSWORD.
func AccountsConf(users []User, password func(user string) string) []byte {
	var b bytes.Buffer
	b.WriteString("accounts {\n")
	for _, u := range users {
		fmt.Fprintf(&b, "  %s {\n", Account(u.Name))
		if u.Name == Admin {
			b.WriteString("    jetstream: enabled\n")
		}
		writeList(&b, "    ", "exports", exports(users, u.Name))
		writeList(&b, "    ", "imports", imports(u))
		fmt.Fprintf(&b, "    users: [\n      {\n        user: %q\n        password: %s\n        permissions: {\n", u.Name, password(u.Name))
		writeAllow(&b, "publish", u.Publish)
		writeAllow(&b, "subscribe", u.Subscribe)
		b.WriteString("        }\n      }\n    ]\n  }\n")
	}
	b.WriteString("}\n")
	return b.Bytes()
}

// replyThreshold is how long the server keeps a route for replies after the last one.
// Publishers wait for five seconds at most, and pull requests end within one.
const replyThreshold = "10s"

// exports lists what a user's account offers to other accounts.
func exports(users []User, from string) []string {
	var (
		order []string
		who   = map[string][]string{}
	)
	add := func(item, user string) {
		if _, ok := who[item]; !ok {
			order = append(order, item)
		}
		who[item] = append(who[item], Account(user))
	}
	for _, u := range users {
		for _, f := range u.Receives {
			if f.From == from {
				add(fmt.Sprintf("stream: %q", f.Subject), u.Name)
			}
		}
		for _, c := range u.Calls {
			if from != Admin {
				continue
			}
			item := fmt.Sprintf("service: %q, threshold: %q", c.Subject, replyThreshold)
			if c.Many {
				item += ", response: stream"
			}
			add(item, u.Name)
		}
	}
	for i, item := range order {
		order[i] = fmt.Sprintf("{ %s, accounts: [%s] }", item, strings.Join(who[item], ", "))
	}
	return order
}

// imports lists what a user's account takes from others.
func imports(u User) []string {
	var out []string
	for _, c := range u.Calls {
		out = append(out, fmt.Sprintf("{ service: { account: %s, subject: %q } }", Account(Admin), c.Subject))
	}
	for _, f := range u.Receives {
		out = append(out, fmt.Sprintf("{ stream: { account: %s, subject: %q } }", Account(f.From), f.Subject))
	}
	return out
}

func writeList(b *bytes.Buffer, indent, name string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(b, "%s%s: [\n", indent, name)
	for _, item := range items {
		fmt.Fprintf(b, "%s  %s\n", indent, item)
	}
	fmt.Fprintf(b, "%s]\n", indent)
}

func writeAllow(b *bytes.Buffer, what string, subjects []string) {
	fmt.Fprintf(b, "          %s: { allow: [\n", what)
	for _, s := range subjects {
		fmt.Fprintf(b, "            %q\n", s)
	}
	b.WriteString("          ] }\n")
}

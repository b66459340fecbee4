package editing_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

const plainKind = "y-websocket"

var providerKinds = []string{"hocuspocus2", "hocuspocus3", "hocuspocus4"}

// TestClients runs unmodified npm clients against the whole system. They connect to two gateways,
// each of which uses another instance of document-sync. It does not run in parallel with
// TestEditing, which is a load.
func TestClients(t *testing.T) {
	h := newSetup(t)
	t.Run("together", func(t *testing.T) {
		for name, story := range map[string]func(*party){
			"agent's caret":      (*party).agentCaret, // takes longest
			"mixed":              (*party).mixed,
			"patch against keys": (*party).patchDuringTyping,
			"undone":             (*party).undone,
			"several documents":  (*party).severalDocuments,
			"refused":            (*party).refused,
			"ended":              (*party).ended,
			"old rows":           (*party).oldRows,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				story(h.party(t))
			})
		}
		for name, story := range map[string]func(*party, func(int) string){
			"converge":  (*party).converge,
			"offline":   (*party).offline,
			"awareness": (*party).awareness,
			"viewer":    (*party).viewers,
		} {
			for _, kind := range append([]string{plainKind, "mixed"}, providerKinds...) {
				t.Run(name+"/"+kind, func(t *testing.T) {
					t.Parallel()
					story(h.party(t), func(i int) string {
						if kind == "mixed" {
							return append([]string{plainKind}, providerKinds...)[i%4]
						}
						return kind
					})
				})
			}
		}
	})
	t.Run("restart", func(t *testing.T) { //nolint:paralleltest // it stops parts of the world
		h.party(t).restart()
	})
}

// converge checks that clients that type at once on both gateways end up with the same state, and
// so does a client that joins later.
func (p *party) converge(kind func(int) string) {
	doc := p.create("")
	var all []*client
	for i := range 3 {
		all = append(all, p.open(seat{kind: kind(i), gateway: i % 2, document: doc}).opened())
	}
	var typing []func() status
	for i, c := range all {
		typing = append(typing,
			c.begin("type", args{"text": string(rune('a' + i)), "count": 40}),
			c.begin("delete", args{"at": 5, "count": 10}),
			c.begin("block", args{"text": fmt.Sprint("block of ", i)}))
	}
	for _, wait := range typing {
		wait()
	}
	if s := same(p.t, all...); s.Text == "" || strings.Count(s.XML, "block of") != 3 {
		p.t.Errorf("they have the same state, but it is %v", s)
	}
	for g := range 2 {
		late := p.open(seat{kind: kind(3 + g), gateway: g, document: doc}).opened()
		late.do("insert", args{"text": fmt.Sprint("late ", g)})
		all = append(all, late)
	}
	if s := same(p.t, all...); !strings.Contains(s.Text, "late 0") || !strings.Contains(s.Text, "late 1") {
		p.t.Errorf("they have the same state, but it is %v", s)
	}
}

// offline checks that text typed while disconnected arrives after the reconnect.
func (p *party) offline(kind func(int) string) {
	doc := p.create("")
	a := p.open(seat{kind: kind(1), gateway: 0, document: doc}).opened()
	b := p.open(seat{kind: kind(2), gateway: 1, document: doc}).opened()
	a.do("insert", args{"text": "base "})
	b.until(args{"text": "base "})
	a.do("offline", nil)
	a.until(args{"synced": false})
	a.do("insert", args{"at": 5, "text": "offline "})
	b.do("insert", args{"at": 0, "text": "online "})
	a.do("online", nil)
	for _, c := range []*client{a, b} {
		c.until(args{"text": "online base offline ", "synced": true, "settled": true})
	}
	b.do("cut", nil) // not requested by the client
	b.do("insert", args{"at": 0, "text": "cut "})
	for _, c := range []*client{a, b} {
		c.until(args{"text": "cut online base offline ", "synced": true, "settled": true})
	}
	same(p.t, a, b)
}

// awareness checks that clients see each other on both instances, and that the server announces a
// client that leaves, however it leaves.
func (p *party) awareness(kind func(int) string) {
	doc := p.create("")
	var all []*client
	for i, name := range []string{"A", "B", "C", "D"} {
		s := seat{kind: kind(i), gateway: i % 2, document: doc}
		if name == "D" {
			s.who = p.viewer
		}
		c := p.open(s)
		c.do("aware", args{"state": args{"name": name}})
		all = append(all, c)
	}
	see := func(names string, clients ...*client) {
		p.t.Helper()
		for _, c := range clients {
			if s := c.until(args{"names": names}); len(s.Lapsed) > 0 {
				p.t.Errorf("%v had to time out %v", c, s.Lapsed)
			}
		}
	}
	a, b, c, d := all[0], all[1], all[2], all[3]
	see("A,B,C,D", all...)
	a.do("aware", args{"state": args{"name": "A at work"}})
	see("A at work,B,C,D", all...)
	b.do("end", nil)
	see("A at work,C,D", a, c, d)
	c.do("cut", nil)
	c.do("offline", nil)
	see("A at work,D", a, d)
	c.do("online", nil)
	// With y-protocols, a client that returns sees others, and is seen, once they change
	// their states: the earlier ones are outdated.
	for name, c := range map[string]*client{"A again": a, "C again": c, "D again": d} {
		c.do("aware", args{"state": args{"name": name}})
	}
	see("A again,C again,D again", a, c, d)
}

// viewers checks that a viewer sees everything, is visible, and cannot change anything.
func (p *party) viewers(kind func(int) string) {
	doc := p.create("Read me.\n")
	editor := p.open(seat{kind: kind(0), document: doc}).opened()
	viewer := p.open(seat{kind: kind(1), gateway: 1, who: p.viewer, document: doc})
	if s := viewer.until(args{"has": []string{"Read me."}, "synced": true, "settled": true}); kind(1) != plainKind && s.Scope != "readonly" {
		p.t.Errorf("%v has the scope %q, want readonly", viewer, s.Scope)
	}
	viewer.do("block", args{"text": "Never."})
	viewer.do("aware", args{"state": args{"name": "V"}})
	editor.until(args{"names": "V"}) // the text was sent before it
	editor.do("block", args{"text": "Seen by all."})
	s := viewer.until(args{"has": []string{"Seen by all.", "Never."}})
	if kind(1) != plainKind && s.Unsynced != 1 {
		p.t.Errorf("%v has %d unsynced changes, want the refused one", viewer, s.Unsynced)
	}
	viewer.do("offline", nil) // its offline changes are refused too
	viewer.until(args{"synced": false})
	viewer.do("block", args{"text": "Never again."})
	viewer.do("online", nil)
	viewer.until(args{"synced": true})
	editor.do("block", args{"text": "The end."})
	viewer.until(args{"has": []string{"The end."}})
	late := p.open(seat{kind: kind(2), who: p.viewer, gateway: 1, document: doc})
	late.until(args{"has": []string{"The end."}})
	if got, want := p.everywhere(doc, editor, late), "Read me.\n\nSeen by all.\n\nThe end.\n"; got != want {
		p.t.Errorf("the document is %q, want %q", got, want)
	}
}

// severalDocuments opens many documents on one connection, with the token in the URL or in the
// Auth messages only. One does not exist and one is deleted, which does not affect the others.
func (p *party) severalDocuments() {
	for i, kind := range providerKinds {
		var docs []string
		for n := range 4 {
			docs = append(docs, p.create(fmt.Sprintf("Document %d.\n", n)))
		}
		open := func(who world.Member, gateway int, auth bool, socket, doc string) *client {
			return p.open(seat{kind: kind, gateway: gateway, who: who, document: doc, auth: auth, socket: kind + socket})
		}
		var here, there, read []*client
		for _, doc := range docs {
			here = append(here, open(p.owner, i%2, true, "here", doc))
			there = append(there, open(p.owner, (i+1)%2, false, "there", doc))
			read = append(read, open(p.viewer, i%2, true, "read", doc))
		}
		never := open(p.owner, i%2, true, "here", uuid.NewString())
		for n := range docs {
			here[n].until(args{"has": []string{fmt.Sprintf("Document %d.", n)}, "synced": true, "settled": true})
			here[n].do("block", args{"text": fmt.Sprint("Written in ", n)})
			there[n].opened().do("block", args{"text": fmt.Sprint("There, too, in ", n)})
			if s := read[n].until(args{"synced": true, "settled": true}); s.Scope != "readonly" {
				p.t.Errorf("%v has the scope %q, want readonly", read[n], s.Scope)
			}
		}
		if s := never.until(args{"told": "denied"}); !strings.Contains(s.denied(), "not exist") {
			p.t.Errorf("%v got the reason %q", never, s.denied())
		}
		p.remove((i+1)%2, docs[0])
		for _, c := range []*client{here[0], there[0], read[0]} {
			if s := c.until(args{"told": "denied"}); !strings.Contains(s.denied(), "deleted") {
				p.t.Errorf("%v got the reason %q", c, s.denied())
			}
		}
		for n, doc := range docs[1:] {
			n++
			if s := same(p.t, here[n], there[n], read[n]); len(s.Ends) > 0 {
				p.t.Errorf("the connection of %v ended: %v", here[n], s.Ends)
			}
			want := []string{fmt.Sprintf("Document %d.", n), fmt.Sprint("Written in ", n), fmt.Sprint("There, too, in ", n), ""}
			got := strings.Split(strings.ReplaceAll(p.everywhere(doc, here[n], there[n]), "\n\n", "\n"), "\n")
			slices.Sort(got[1:3]) // in any order
			slices.Sort(want[1:3])
			if diff := cmp.Diff(want, got); diff != "" {
				p.t.Errorf("document %d (-want +got):\n%s", n, diff)
			}
		}
	}
}

// mixed lets different clients, REST and an agent write to one document: nothing is lost.
func (p *party) mixed() {
	doc := p.create("# Plan\n\nAlpha.\n\nBravo.\n\nCharlie.\n")
	y := p.open(seat{kind: plainKind, gateway: 0, document: doc})
	hocus := p.open(seat{kind: "hocuspocus4", gateway: 1, auth: true, document: doc})
	older := p.open(seat{kind: "hocuspocus2", gateway: 0, document: doc})
	viewer := p.open(seat{kind: plainKind, gateway: 1, who: p.viewer, document: doc})
	all := []*client{y, hocus, older, viewer}
	for _, c := range all {
		c.until(args{"has": []string{"Charlie."}, "synced": true})
	}
	p.patch(1, doc, "# Plan\n\nAlpha.\n\nBravo.\n\nDelta, not Charlie.\n\n- one\n- two\n")
	for _, c := range all {
		c.until(args{"has": []string{"Delta, not Charlie.", "two"}})
	}
	at := []func() status{
		y.begin("keys", args{"behind": "Alpha", "text": " as y-websocket types it"}),
		hocus.begin("keys", args{"behind": "Bravo", "text": " as Hocuspocus types it"}),
		older.begin("keys", args{"behind": "Delta", "text": ", as an older one has it"}),
	}
	appended := p.say(0, "append From the agent. to document "+doc)
	edited := p.say(1, "replace two with three in document "+doc)
	for _, wait := range at {
		wait()
	}
	appended()
	edited()
	want := "# Plan\n\nAlpha as y-websocket types it.\n\nBravo as Hocuspocus types it.\n\nDelta, as an older one has it, not Charlie.\n\n- one\n- three\n\nFrom the agent.\n"
	if diff := cmp.Diff(want, p.everywhere(doc, all...)); diff != "" {
		p.t.Errorf("the document (-want +got):\n%s", diff)
	}
}

// patchDuringTyping replaces the content over REST while others type. That may remove text that was
// just typed, but in the end everybody sees the same.
func (p *party) patchDuringTyping() {
	doc := p.create("Alpha.\n\nBravo.\n")
	y := p.open(seat{kind: plainKind, gateway: 0, document: doc})
	hocus := p.open(seat{kind: "hocuspocus3", gateway: 1, document: doc})
	for _, c := range []*client{y, hocus} {
		c.until(args{"has": []string{"Bravo."}, "synced": true})
	}
	at := []func() status{
		y.begin("keys", args{"behind": "Alpha", "text": strings.Repeat(" and more", 10)}),
		hocus.begin("keys", args{"behind": "Bravo", "text": strings.Repeat(" and on", 10)}),
	}
	for i := range 4 {
		p.patch(i%2, doc, fmt.Sprintf("Alpha.\n\nBravo.\n\nVersion %d.\n", i))
	}
	for _, wait := range at {
		wait()
	}
	got := p.everywhere(doc, y, hocus)
	if strings.Count(got, "Version ") != 1 || !strings.Contains(got, "Version 3.") || !strings.HasPrefix(got, "Alpha") {
		p.t.Errorf("the document is %q", got)
	}
}

// slowly is the script of an agent that writes and then continues for a while.
const slowly = `
rules:
  - when: {user: 'in (?P<doc>\S+)$', result: {tool: doc_append}}
    then: [{say: 'Let me think.'}, {wait: 10m}]
  - when: {user: 'in (?P<doc>\S+)$'}
    then: [{call: {tool: doc_append, args: {id: '{{.match.doc}}', content: 'Written by an agent.'}}}]
`

// agentCaret checks that an agent is visible on both instances while its run works on the
// document, with its caret after its text, and disappears later.
func (p *party) agentCaret() {
	if err := p.w.PutScript(p.t.Context(), "slowly", slowly); err != nil {
		p.t.Fatal(err)
	}
	doc := p.create("# Notes\n")
	all := []*client{
		p.open(seat{kind: plainKind, gateway: 0, document: doc}), p.open(seat{kind: plainKind, gateway: 1, who: p.viewer, document: doc}),
		p.open(seat{kind: "hocuspocus4", gateway: 0, document: doc}), p.open(seat{kind: "hocuspocus2", gateway: 1, document: doc}),
	}
	var sees []func() status
	for _, c := range all {
		sees = append(sees, c.opened().begin("until", args{"writes": "Agent", "has": []string{"Written by an agent."}}))
	}
	c := p.w.Client(0, p.owner)
	run := p.submit(c, "sim/slowly", "write in "+doc)
	id := ""
	for i, wait := range sees {
		client, agent := wait().writer("Agent")
		if id == "" {
			id = client
		}
		if client != id || agent.User.Run != run.ID || agent.User.Color == "" {
			p.t.Errorf("%v sees the agent as %s, %+v; want %s and the run %s", all[i], client, agent.User, id, run.ID)
		}
		if want := "Written by an agent."; agent.Caret.Text != want || agent.Caret.At != len(want) {
			p.t.Errorf("%v sees the agent's caret at %d of %q, want it at the end of %q", all[i], agent.Caret.At, agent.Caret.Text, want)
		}
	}
	if got, err := c.Run(p.t.Context(), run.ID); err != nil || got.Ended() {
		p.t.Errorf("the agent is visible, but its run is %+v, %v; want it running", got, err)
	}
	if err := c.Cancel(p.t.Context(), run.SessionID); err != nil {
		p.t.Error(err)
	}
	for _, c := range all {
		if s := c.until(args{"users": ""}); len(s.Lapsed) > 0 {
			p.t.Errorf("%v had to time out the agent, want its removal announced", c)
		}
	}
}

// refused checks that a refused client gets a close code and a reason, and stops reconnecting if it
// supports that.
func (p *party) refused() {
	doc := p.create("Private.\n")
	stranger := p.member("", "owner")
	stranger.Workspace = p.owner.Workspace // of which they are no member
	elsewhere := p.member("", "owner")
	expired, _, err := identity.DevToken(p.secret(), id.New[id.Member](), -time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	for gateway := range 2 {
		for _, tc := range []struct {
			name string
			seat seat
			code int
		}{
			{"no token that anybody knows", seat{token: "a.b.c", document: doc}, 4401},
			{"an old token", seat{token: expired, document: doc}, 4401},
			{"not a member", seat{who: stranger, document: doc}, 4403},
			{"another workspace's document", seat{who: elsewhere, document: doc}, 4404},
			{"no such document", seat{document: uuid.NewString()}, 4404},
			{"no document's name", seat{document: "my-page"}, 4404},
		} {
			tc.seat.gateway, tc.seat.kind = gateway, plainKind
			s := p.open(tc.seat).until(args{"ends": 1})
			if len(s.Ends) != 1 || s.Ends[0].Code != tc.code || s.Ends[0].Reason == "" || s.Synced || s.XML != "" {
				p.t.Errorf("%s: %v, want one end with %d and a reason", tc.name, s, tc.code)
			}
			for _, kind := range providerKinds {
				tc.seat.kind, tc.seat.auth = kind, true
				c := p.open(tc.seat)
				s := c.until(args{"told": "denied"})
				if s.denied() == "" || s.Synced || s.XML != "" {
					p.t.Errorf("%s: %v: %v, want a reason", tc.name, c, s)
				}
				if tc.code != 4404 { // the whole connection is refused
					c.until(args{"ended": tc.code})
				}
			}
		}
	}
}

func (p *party) secret() conf.Secret {
	for _, e := range p.w.TokenEnv {
		if secret, ok := strings.CutPrefix(e, "GATEWAY_DEV_SECRET="); ok {
			return conf.Secret(secret)
		}
	}
	p.t.Fatal("the world has no secret for tokens")
	return ""
}

// leeway is how long a token is accepted after its expiry, since clocks may differ.
const leeway = 30 * time.Second

// ended checks the close codes of clients that lose access to an open document: the token expires,
// the membership ends, or the document is deleted.
func (p *party) ended() {
	doc, gone := p.create("Here.\n"), p.create("Soon gone.\n")
	leaver, short := p.member(p.owner.Workspace, "editor"), p.member(p.owner.Workspace, "editor")
	var stay, leave, expire, lose []*client
	for gateway := range 2 {
		open := func(kind string, who world.Member, document string) *client {
			return p.open(seat{kind: kind, gateway: gateway, who: who, auth: true, document: document}).opened()
		}
		stay = append(stay, open(plainKind, p.owner, doc), open("hocuspocus4", p.owner, doc))
		leave = append(leave, open(plainKind, leaver, doc), open("hocuspocus3", leaver, doc))
		lose = append(lose, open(plainKind, p.owner, gone), open(plainKind, p.viewer, gone))
	}
	var err error
	if short.Token, _, err = identity.DevToken(p.secret(), id.Must[id.Member](short.ID), 3*time.Second-leeway); err != nil {
		p.t.Fatal(err)
	}
	for gateway := range 2 { // which may be too late already: the code is the same
		expire = append(expire, p.open(seat{kind: plainKind, gateway: gateway, who: short, document: doc}),
			p.open(seat{kind: "hocuspocus4", gateway: gateway, who: short, auth: true, document: doc}))
	}
	if _, err := p.admin(p.t).Exec(p.t.Context(), `delete from gateway.members where workspace_id = $1 and member_id = $2`, leaver.Workspace, leaver.ID); err != nil {
		p.t.Fatal(err)
	}
	p.remove(0, gone)
	for _, c := range lose {
		if s := c.until(args{"ends": 1}); !slices.Equal(s.codes(), []int{4404}) || !strings.Contains(s.Ends[0].Reason, "deleted") {
			p.t.Errorf("%v ended with %v, want 4404 for a deleted document", c, s.Ends)
		}
	}
	back := p.open(seat{kind: plainKind, gateway: 1, document: gone})
	if s := back.until(args{"ends": 1}); !slices.Equal(s.codes(), []int{4404}) {
		p.t.Errorf("a deleted document: %v, want 4404", s.Ends)
	}
	for _, c := range leave {
		if s := c.until(args{"ends": 1}); s.codes()[0] != 4403 {
			p.t.Errorf("%v ended with %v, want 4403", c, s.Ends)
		}
	}
	for _, c := range expire {
		if s := c.until(args{"ends": 1}); s.codes()[0] != 4401 {
			p.t.Errorf("%v ended with %v, want 4401", c, s.Ends)
		}
	}
	for _, c := range stay {
		if s := c.do("state", nil); len(s.Ends) > 0 {
			p.t.Errorf("%v ended too: %v", c, s.Ends)
		}
	}
}

// oldProgram stands for an older version of document-sync, which still runs while this one starts:
// it sends the same statements.
type oldProgram struct {
	*party
	db *pgx.Conn
}

func (p *party) oldProgram() oldProgram {
	db := p.admin(p.t)
	if _, err := db.Exec(p.t.Context(), `set search_path to documents`); err != nil {
		p.t.Fatal(err)
	}
	return oldProgram{p, db}
}

func (o oldProgram) args(doc, content string, sequence int64, operation string) pgx.NamedArgs {
	return pgx.NamedArgs{
		"ws": o.owner.Workspace, "id": doc, "name": "Old", "content": content, "sequence": sequence, "by": o.owner.ID,
		"run": uuid.NullUUID{}, "at": time.Now(), "bytes": len(content), "operation": operation,
	}
}

func (o oldProgram) exec(sql string, args pgx.NamedArgs) {
	o.t.Helper()
	if _, err := o.db.Exec(o.t.Context(), sql, args); err != nil {
		o.t.Fatal(err)
	}
}

const oldVersion = `insert into versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, bytes, created_at)
	values (@ws, @id, @sequence, @by, @run, @operation, @name, @content, @bytes, @at)`

func (o oldProgram) create(content string) (doc string) {
	o.t.Helper()
	doc = id.New[id.Document]().String()
	args := o.args(doc, content, 1, "create")
	o.exec(`insert into documents (workspace_id, id, name, content, sequence, created_by, created_at, updated_by, updated_run, updated_at, versions, version_bytes)
		values (@ws, @id, @name, @content, @sequence, @by, @at, @by, @run, @at, 1, @bytes)`, args)
	o.exec(oldVersion, args)
	return doc
}

// edit replaces a text in the document's content as the old program sees it.
func (o oldProgram) edit(doc, old, with string) {
	o.t.Helper()
	var content string
	var sequence int64
	if err := o.db.QueryRow(o.t.Context(), `select content, sequence from documents where workspace_id = $1 and id = $2 and deleted_at is null`,
		o.owner.Workspace, doc).Scan(&content, &sequence); err != nil {
		o.t.Fatal(err)
	}
	if strings.Count(content, old) != 1 {
		o.t.Fatalf("the old program reads %q, want %q in it", content, old)
	}
	args := o.args(doc, strings.Replace(content, old, with, 1), sequence+1, "edit")
	o.exec(`update documents set name = @name, content = @content, sequence = @sequence, updated_by = @by, updated_run = @run, updated_at = @at,
		versions = versions + 1, version_bytes = version_bytes + @bytes
		where workspace_id = @ws and id = @id`, args)
	o.exec(oldVersion, args)
}

// oldRows checks that text written by the old program appears once when the document is opened, by
// whichever client, and that its later edits appear in the open document.
func (p *party) oldRows() {
	old := p.oldProgram()
	for _, kinds := range [][2]string{{plainKind, "hocuspocus4"}, {"hocuspocus2", plainKind}, {"hocuspocus3", "hocuspocus3"}} {
		const markdown = "# Old\n\nIt was **bold** once.\n\n1. one\n2. two\n"
		doc := old.create(markdown)
		a := p.open(seat{kind: kinds[0], gateway: 0, document: doc}) // both at once
		b := p.open(seat{kind: kinds[1], gateway: 1, document: doc})
		for _, c := range []*client{a, b} {
			c.until(args{"has": []string{`<heading level="1">Old</heading><paragraph>It was <bold>bold</bold> once.</paragraph>`}, "synced": true, "settled": true})
		}
		if diff := cmp.Diff(markdown, p.everywhere(doc, a, b)); diff != "" {
			p.t.Errorf("what clients see (-want +got):\n%s", diff)
		}
		typing := a.begin("keys", args{"behind": "two", "text": " and three"})
		old.edit(doc, "once", "twice")
		typing()
		for _, c := range []*client{a, b} {
			c.until(args{"has": []string{"</bold> twice.", "two and three"}})
		}
		want := "# Old\n\nIt was **bold** twice.\n\n1. one\n2. two and three\n"
		if diff := cmp.Diff(want, p.everywhere(doc, a, b)); diff != "" {
			p.t.Errorf("after the old program's edit (-want +got):\n%s", diff)
		}
	}
	// REST, before any client has opened it.
	doc := old.create("Old and unopened.\n")
	if got := p.markdown(0, doc); got != "Old and unopened.\n" {
		p.t.Errorf("REST returns %q for a document that was never opened", got)
	}
	p.patch(1, doc, "Old and unopened.\n\nNo more.\n")
	c := p.open(seat{kind: plainKind, gateway: 0, document: doc}).opened()
	if got := p.everywhere(doc, c); got != "Old and unopened.\n\nNo more.\n" {
		p.t.Errorf("after PATCH it returns %q", got)
	}
}

// restart checks that a restarted instance closes its connections with a code, and that nothing
// written meanwhile is lost.
func (p *party) restart() {
	doc := p.create("Log.\n")
	var all []*client
	for gateway := range 2 {
		for _, kind := range append([]string{plainKind}, providerKinds...) {
			all = append(all, p.open(seat{kind: kind, gateway: gateway, document: doc}).opened())
		}
	}
	// A gateway uses the instance with the other number.
	p.restartUnder(doc, 2, all[:len(all)/2], all[len(all)/2:])
	for _, c := range all[len(all)/2:] {
		if s := c.do("state", nil); len(s.Ends) > 0 {
			p.t.Errorf("%v was on the other instance, and its connection ended: %v", c, s.Ends)
		}
	}
	p.restartUnder(doc, 1, all[len(all)/2:], all[:len(all)/2])
	p.everywhere(doc, all...)
}

// restartUnder restarts an instance while all clients write. on are the clients connected to it,
// off the others.
func (p *party) restartUnder(doc string, replica int, on, off []*client) {
	part := p.w.Replica(subject.DocumentSync, replica)
	all := slices.Concat(on, off)
	length := len(all[0].do("state", nil).Text)
	var writing []func() status
	var blocks []string
	write := func(when string) {
		for _, c := range all {
			block := fmt.Sprintf("%v %s restart %d.", c, when, replica)
			blocks = append(blocks, block)
			writing = append(writing, c.begin("block", args{"text": block}), c.begin("type", args{"text": "x", "count": 50}))
		}
	}
	write("before")
	if err := part.Stop(); err != nil {
		p.t.Error(err)
	}
	write("during")
	for _, wait := range writing {
		wait()
	}
	for _, c := range on {
		if s := c.until(args{"ends": 1}); s.codes()[0] != 1012 {
			p.t.Errorf("the first connection of %v ended with %v, want 1012", c, s.Ends[0])
		}
	}
	same(p.t, off...) // they are not affected
	p.markdown(off[0].gateway, doc)
	if err := part.Restart(); err != nil {
		p.t.Fatal(err)
	}
	if err := part.Ready(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	s := same(p.t, all...)
	if want := length + 2*50*len(all); len(s.Text) != want {
		p.t.Errorf("after restart %d there are %d characters, want %d", replica, len(s.Text), want)
	}
	for _, block := range blocks {
		if n := strings.Count(s.XML, block); n != 1 {
			p.t.Errorf("%q occurs %d times, want once", block, n)
		}
	}
}

package browser_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image/jpeg"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd/natstest"
	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	"signalbox.dev/services/tool-executor/internal/browser"
)

func TestReadAsMarkdown(t *testing.T) {
	t.Parallel()
	w := share(t, pages{"/": `<!doctype html><title> The  title </title>
<style>.x{display:none}</style><script>document.write('')</script>
<h1>Hello <em>you</em></h1><p>A <b>bold</b> word, <code>code</code> and<br>a break. <span class=x>hidden</span><span hidden>also</span></p>
<p style="visibility:hidden">invisible</p>
<ul><li>one<li>two <a href="/two">link</a><ul><li>deep</ul></ul><ol start=3><li>three<li>four</ol>
<blockquote>quoted<p>twice</blockquote><pre>a
  b</pre>
<table><tr><th>k<th>v<tr><td>a|b<td>2</table>
<img alt="a picture" src="data:,"><img alt="" src="data:,">
<form><label>Name <input name=n value=Ann></label><input type=password value=secret><input type=hidden value=h>
<input type=checkbox checked aria-label=Agree><select name=c><option>red<option selected>blue</select>
<textarea placeholder=Notes></textarea><button disabled>Send</button></form>
<iframe srcdoc="<p>inner</p>"></iframe><div id=host></div>
<script>document.getElementById('host').attachShadow({mode: 'open'}).innerHTML = '<p>shadow <slot></slot></p>'</script>
<a href="javascript:void 0">act</a><a href="/img"><img alt="pictured"></a><a></a>`})
	if p := w.mustOpen("/"); p.GetTitle() != "The title" || p.GetStatus() != http.StatusOK || p.GetUrl() != w.web.URL+"/" || p.GetLoading() {
		t.Errorf("Open = %v", p)
	}
	want := `# Hello you

A **bold** word, ` + "`code`" + ` and
a break.

- one
- two [link](/two) @1
  - deep

3. three
4. four

> quoted
>
> twice

` + "```\na\n  b\n```" + `

| k | v |
| --- | --- |
| a\|b | 2 |

![a picture]
Name [text field "Name" = "Ann" @2] [password field "" @3] [checkbox "Agree" (on) @4] [list "c" = "blue" of red, blue @5] [text field "Notes" @6] [button "Send" (disabled) @7]

inner

shadow

[act] @8 [![pictured]](/img) @9`
	if diff := cmp.Diff(want, w.read()); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
}

func TestActing(t *testing.T) {
	t.Parallel()
	w := share(t, pages{
		"/": `<title>Form</title><form action=/sent><input name=q value=old><select name=c><option value=1>one<option value=2>two</select><button>Go</button></form>
<a href=/next>next</a><a href=/popped target=_blank>pop</a><button onclick="window.open('/popped')">open</button>
<button onclick="setTimeout(() => document.querySelector('p').textContent = 'changed', 10)">change</button><p>same</p>
<div contenteditable id=rich>rich</div><input id=file type=file><button style="position:absolute;left:-9999px" onclick="location='/next'">off</button>
<button id=isolated onclick="document.title = typeof signalboxRefs + event.isTrusted">isolated</button>`,
		"/sent": `<title>Sent</title>`, "/next": `<title>Next</title>`, "/popped": `<title>Popped</title>`,
	})
	w.mustOpen("/")
	w.typeInto("input[name=q]", "näw \"text\"", false)
	w.typeInto("select", "two", false)
	if got := w.read(); !strings.Contains(got, `= "näw "text"" @`) || !strings.Contains(got, `"two" of one, two`) {
		t.Errorf("after typing, the page is %s", got)
	}
	if p := w.click("form button"); p.GetTitle() != "Sent" || !strings.HasSuffix(p.GetUrl(), "/sent?q=n%C3%A4w+%22text%22&c=2") {
		t.Errorf("after the form was sent, the page is %v", p)
	}
	w.mustOpen("/")
	if p := w.typeInto("input[name=q]", "x", true); p.GetTitle() != "Sent" {
		t.Errorf("after Enter, the page is %v", p)
	}
	for selector, title := range map[string]string{
		"@5": "Popped", "a": "Next", "a[target]": "Popped", "form ~ button": "Popped", "button[style]": "Next", "#isolated": "undefinedtrue",
	} {
		w.mustOpen("/")
		w.read() // makes the references
		if p := w.click(selector); p.GetTitle() != title {
			t.Errorf("after a click on %s, the page is %v, want %s", selector, p, title)
		}
	}
	w.mustOpen("/")
	w.typeInto("#rich", "replaced", false)
	if got := w.read(); !strings.Contains(got, `"replaced"`) {
		t.Errorf("after typing into a rich text, the page is %s", got)
	}
	for selector, problem := range map[string]string{"@99": "no element @99", "#none": "no element matches #none", "a[": "neither a reference", "#file": "files cannot be uploaded"} {
		_, err := w.service.Click(w.ctx, &browserv1.ClickRequest{Selector: selector, Origin: w.web.URL})
		wantFault(t, "Click("+selector+")", err, fault.NotFound, problem)
	}
	_, err := w.service.Click(w.ctx, &browserv1.ClickRequest{Selector: " ", Origin: w.web.URL})
	wantFault(t, "Click of nothing", err, fault.Invalid, "reference")
	_, err = w.service.Type(w.ctx, &browserv1.TypeRequest{Selector: "p", Text: "x", Origin: w.web.URL})
	wantFault(t, "Type into a paragraph", err, fault.NotFound, "takes no text")
	_, err = w.service.Type(w.ctx, &browserv1.TypeRequest{Selector: "select", Text: "three", Origin: w.web.URL})
	wantFault(t, "Type of no option", err, fault.NotFound, "no option three")
}

// TestActingIsNotTakenBack acts on pages where something goes wrong afterwards: the result still
// says that it happened. Where nobody knows whether it happened, the error says so.
func TestActingIsNotTakenBack(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 1), make(chan struct{})
	site := pages{"/": `<title>Start</title><a href="http://127.0.0.2/">refused</a><a id=cut href=/cut>cut</a><a id=slow href=/slow>slow</a>
<button id=popup onclick="window.open('http://127.0.0.2/')">pop-up</button><button id=later onclick="setTimeout(() => { for (;;); }, 20)">later</button>
<button id=hangs onclick="for (;;);">hangs</button><button id=off style="position:absolute;left:-9999px" onclick="for (;;);">off</button>
<input onkeydown="for (;;);"><form action=http://127.0.0.2/><textarea></textarea><input name=q id=sent></form>`}
	w := share(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/cut":
			panic(http.ErrAbortHandler)
		case "/slow":
			asked <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return
		}
		site.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() { close(release) }) // after the subtests
	const submits = "types and submits"
	for selector, want := range map[string]string{
		"a": "only public addresses", "#cut": "cannot be reached", "#slow": "no time", "#popup": "only public addresses", "#later": "does not respond", "#sent": "only public addresses",
		"#hangs": "", "#off": "", "input": "",
	} {
		t.Run(selector, func(t *testing.T) {
			t.Parallel()
			own := *w
			own.t = t
			own.newSession(w.actor.Workspace)
			own.mustOpen("/")
			ctx, cancel := context.WithCancel(own.ctx)
			defer cancel()
			if selector == "#slow" {
				go func() {
					<-asked
					time.Sleep(100 * time.Millisecond) //nolint:forbidigo // Chromium may ask before it says that the click is done
					cancel()
				}()
			}
			var element, problem string
			var page *browserv1.Page
			var err error
			if selector == "input" || selector == "#sent" {
				var res *browserv1.TypeResponse
				res, err = own.service.Type(ctx, &browserv1.TypeRequest{Selector: selector, Text: submits, Submit: true, Origin: w.web.URL})
				element, problem, page = res.GetElement(), res.GetProblem(), res.GetPage()
			} else {
				var res *browserv1.ClickResponse
				res, err = own.service.Click(ctx, &browserv1.ClickRequest{Selector: selector, Origin: w.web.URL})
				element, problem, page = res.GetElement(), res.GetProblem(), res.GetPage()
			}
			if want == "" {
				wantFault(t, selector, err, fault.Unavailable, "does not respond")
			} else if err != nil || element == "" || page != nil || !strings.Contains(problem, want) {
				t.Errorf("%s: element %q, page %v, problem %q, %v; want that it is done, with the problem %q", selector, element, page, problem, err, want)
			}
			own.mustOpen("/")
		})
	}
}

// TestOriginIsChecked acts with the origin of another page than the open one: nothing happens.
func TestOriginIsChecked(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(pages{"/": `<title>Other</title><button onclick="document.title='clicked'">b</button><input oninput="document.title='typed'">`})
	defer other.Close()
	w := share(t, pages{
		"/": `<title>Start</title><button onclick="document.title='clicked'">b</button><input oninput="document.title='typed'">
<div id=framed style="width:300px;height:200px"><iframe src="` + other.URL + `" style="width:300px;height:200px;border:0"></iframe></div>`,
		"/leaves": `<a href="` + other.URL + `">away</a>`,
	})
	check := func(page, origin string, k fault.Kind, says string) {
		t.Helper()
		_, err := w.service.Click(w.ctx, &browserv1.ClickRequest{Selector: "button", Origin: origin})
		wantFault(t, "Click with the origin "+origin, err, k, says)
		_, err = w.service.Type(w.ctx, &browserv1.TypeRequest{Selector: "input", Text: "x", Origin: origin})
		wantFault(t, "Type with the origin "+origin, err, k, says)
		if res, err := w.service.Read(w.ctx, &browserv1.ReadRequest{}); err != nil || res.GetPage().GetTitle() != page {
			t.Errorf("after acts with the origin %s, the page is %v, %v, want %s as it was", origin, res.GetPage(), err, page)
		}
	}
	w.mustOpen("/")
	for _, origin := range []string{other.URL, w.web.URL + "/", "https" + strings.TrimPrefix(w.web.URL, "http"), "http://127.0.0.1", "null", "*"} {
		check("Start", origin, fault.Conflict, "the page is at "+w.web.URL+" now")
	}
	check("Start", "", fault.Invalid, "origin: ")
	for _, selector := range []string{"iframe", "#framed"} {
		_, err := w.service.Click(w.ctx, &browserv1.ClickRequest{Selector: selector, Origin: w.web.URL})
		wantFault(t, "Click into a frame of another origin", err, fault.NotFound, "another site")
	}
	w.mustOpen("/leaves")
	if p := w.click("a"); p.GetTitle() != "Other" {
		t.Fatalf("the link leads to %v", p)
	}
	check("Other", w.web.URL, fault.Conflict, "the page is at "+other.URL+" now")
}

// TestPagesThatLeave acts on pages that lead to another site as soon as they are touched. That site
// does not get what was meant for them.
func TestPagesThatLeave(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/got" {
			got.Add(1)
		}
		rw.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(rw, `<title>Other</title><body onmousedown="fetch('/got')" style="margin:0;height:100vh"><form action=/got><input name=q autofocus></form>`)
	}))
	defer other.Close()
	leave := `"if (!window.left) { left = location = '` + other.URL + `'; for (const t = Date.now(); Date.now() - t < 1500;); }"`
	w := share(t, pages{
		"/hover": `<button style="width:100vw;height:90vh" onmousemove=` + leave + `>b</button>`,
		"/input": `<input oninput=` + leave + `>`,
	})
	w.mustOpen("/hover")
	res, err := w.service.Click(w.ctx, &browserv1.ClickRequest{Selector: "button", Origin: w.web.URL})
	if err == nil {
		t.Errorf("Click on a page that leaves = %v", res)
	}
	own := *w
	own.newSession(w.actor.Workspace)
	own.mustOpen("/input")
	typed, err := own.service.Type(own.ctx, &browserv1.TypeRequest{Selector: "input", Text: "x", Submit: true, Origin: w.web.URL})
	wantFault(t, fmt.Sprintf("Type into a page that leaves (%v)", typed), err, fault.Unavailable, "")
	for _, one := range []*world{w, &own} {
		one.mustOpen("/") // after whatever was on its way
	}
	if n := got.Load(); n > 0 {
		t.Errorf("the other site got %d inputs", n)
	}
}

// TestPrivatePagesNeedCare opens a page for a caller that would not treat it as private.
func TestPrivatePagesNeedCare(t *testing.T) {
	t.Parallel()
	w := share(t, pages{"/": "here"})
	_, err := w.service.Open(w.ctx, &browserv1.OpenRequest{Url: w.web.URL})
	wantFault(t, "Open for a careless caller", err, fault.Conflict, "BROWSER_ALLOW_PRIVATE")
	example := start(t, pages{"/": "here"}, func(s *browser.Settings) { s.Example, s.AllowPrivate = s.AllowPrivate, "" })
	if _, err := example.service.Open(example.ctx, &browserv1.OpenRequest{Url: example.web.URL}); err != nil {
		t.Errorf("Open of the example page: %v", err)
	}
}

func TestScreenshot(t *testing.T) {
	t.Parallel()
	w := share(t, pages{
		"/": `<body style="margin:0;background:#f00">`,
		"/noise": `<canvas width=1280 height=800></canvas><script>const c=document.querySelector('canvas').getContext('2d'),d=c.createImageData(1280,800)
for(let i=0;i<d.data.length;i++)d.data[i]=i%4==3?255:Math.random()*256;c.putImageData(d,0,0)</script>`,
	})
	w.mustOpen("/")
	res, err := w.service.Screenshot(w.ctx, &browserv1.ScreenshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := jpeg.Decode(bytes.NewReader(res.GetImage()))
	if err != nil || res.GetMediaType() != "image/jpeg" {
		t.Fatalf("Screenshot is %s: %v", res.GetMediaType(), err)
	}
	if r, g, _, _ := img.At(100, 100).RGBA(); img.Bounds().Dx() != 1280 || img.Bounds().Dy() != 800 || r < 0xf000 || g > 0x1000 {
		t.Errorf("the picture has %v and the color %x %x", img.Bounds(), r, g)
	}
	w.mustOpen("/noise")
	if res, err = w.service.Screenshot(w.ctx, &browserv1.ScreenshotRequest{}); err != nil || len(res.GetImage()) > 180<<10 {
		t.Errorf("a noisy picture has %d bytes: %v", len(res.GetImage()), err)
	}
}

func TestRefusedAddresses(t *testing.T) {
	t.Parallel()
	w := share(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/private":
			http.Redirect(w, r, "http://127.0.0.2/", http.StatusFound)
		case "/file":
			w.Header().Set("Content-Disposition", "attachment; filename=x.bin")
			_, _ = io.WriteString(w, "x")
		case "/nothing":
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	for _, url := range []string{"", "x", "file:///etc/passwd", "view-source:" + w.web.URL, "chrome://version", "data:text/html,x", "javascript:alert(1)", "about:blank", "http://127.0.0.2/", "http://[::1]/", "http://user:pw@example.com/", "ftp://example.com/", "http://\x00"} {
		_, err := w.service.Open(w.ctx, &browserv1.OpenRequest{Url: url, Private: true})
		wantFault(t, "Open("+url+")", err, fault.Invalid, "url: ")
	}
	for path, says := range map[string]string{
		"/loop": "redirects too often", "/private": "only public addresses", "/file": "browser does not", "/nothing": "sent no page",
	} {
		_, err := w.open(path)
		wantFault(t, "Open("+path+")", err, fault.Conflict, says)
	}
	if got := w.read(); got != "" {
		t.Errorf("after a failure, the page is %q", got)
	}
}

// TestMisbehaving opens pages that try to hang the browser. Every call ends, and the session can
// go on.
func TestMisbehaving(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	handler := pages{
		"/good":     `<title>Good</title>good`,
		"/endless":  `<title>E</title><p>endless<script>setTimeout(() => { for (;;); }, 0)</script>`,
		"/alerts":   `<title>A</title><script>alert(1); confirm(2); prompt(3)</script><p>after the alerts`,
		"/flood":    `<script>for (;;) alert(1)</script>`,
		"/unload":   `<title>U</title><button>b</button><script>onbeforeunload = e => { e.preventDefault(); return 'stay' }</script>`,
		"/windows":  `<title>W</title><p>windows<script>for (let i = 0; i < 20; i++) window.open('/good?' + i)</script>`,
		"/elements": `<title>M</title><script>document.write('<div><p>x</p></div>'.repeat(10000))</script>`,
		"/huge":     `<title>H</title><script>document.write('<p>' + 'y'.repeat(1000) + '</p>', ('<p>' + 'z'.repeat(1000)).repeat(1100))</script>`,
		"/deep":     `<title>D</title><p><script>let d = document.body.appendChild(document.createElement('div')); for (let i = 0; i < 600; i++) d = d.appendChild(document.createElement('div')); d.textContent = 'deep'</script>`,
		"/proto":    `<title>P</title><p>text<script>Object.prototype.toJSON = Array.prototype.push = String.prototype.replace = () => { throw 1 }; Node.prototype.checkVisibility = null</script>`,
		"/console":  `<title>C</title><p>console<script>setInterval(() => { for (let i = 0; i < 100; i++) console.log(i, document) }, 5)</script>`,
		"/refresh":  `<title>R</title><meta http-equiv=refresh content=0>`,
		"/history":  `<title>Y</title><script>setInterval(() => { for (let i = 0; i < 10; i++) location.hash = Math.random() }, 1)</script>`,
	}
	w := share(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/trickle" {
			_, _ = io.WriteString(rw, "<title>T</title><p>first part")
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-slow:
			case <-r.Context().Done():
			}
			return
		}
		handler.ServeHTTP(rw, r)
	}))
	defer close(slow)
	for path, check := range map[string]func(w *world, text string, err error) bool{
		"/endless":  nil,
		"/alerts":   func(_ *world, text string, _ error) bool { return text == "after the alerts" },
		"/flood":    nil,
		"/unload":   func(w *world, _ string, _ error) bool { w.click("button"); return true },
		"/windows":  func(_ *world, text string, _ error) bool { return text == "windows" },
		"/elements": func(_ *world, text string, _ error) bool { return strings.Count(text, "x") == 10_000 },
		"/huge":     func(_ *world, text string, _ error) bool { return len(text) > 1_000_000 && len(text) <= 1<<20 },
		"/deep":     func(_ *world, text string, err error) bool { return err != nil || text == "deep" },
		"/proto":    func(_ *world, text string, _ error) bool { return text == "text" },
		"/console":  func(_ *world, text string, _ error) bool { return text == "console" },
		"/refresh":  nil,
		"/history":  nil,
		"/trickle":  func(_ *world, text string, _ error) bool { return text == "first part" },
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			own := *w
			own.t = t
			own.newSession(w.actor.Workspace)
			_, err := own.open(path)
			var text string
			if err == nil {
				var res *browserv1.ReadResponse
				res, err = own.service.Read(own.ctx, &browserv1.ReadRequest{})
				text = res.GetMarkdown()
			}
			if err != nil && fault.From(err).Kind == fault.Internal {
				t.Errorf("%s fails with %v, which tells the model nothing", path, err)
			}
			if check != nil && !check(&own, text, err) {
				t.Errorf("%s reads as %.200q (%d bytes), %v", path, text, len(text), err)
			}
			if p := own.mustOpen("/good"); p.GetTitle() != "Good" {
				t.Errorf("after %s, the next page is %v", path, p)
			}
		})
	}
}

func TestSessionsAreApart(t *testing.T) {
	t.Parallel()
	w := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := r.Cookie("who"); err == nil {
			_, _ = fmt.Fprint(w, "<p>known as ", c.Value)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "who", Value: r.URL.Query().Get("who")})
		_, _ = fmt.Fprint(w, "<p>stranger")
	}))
	one, other, elsewhere := *w, *w, *w
	other.newSession(w.actor.Workspace)
	elsewhere.newSession(id.New[id.Workspace]())
	for _, s := range []struct {
		w   *world
		who string
	}{{&one, "one"}, {&other, "other"}, {&elsewhere, "elsewhere"}} {
		_, err := s.w.service.Read(s.w.ctx, &browserv1.ReadRequest{})
		wantFault(t, "Read without a page", err, fault.NotFound, "browser_open")
		s.w.mustOpen("/?who=" + s.who)
		if got := s.w.read(); got != "stranger" {
			t.Errorf("the first page of %s says %q", s.who, got)
		}
	}
	for _, s := range []struct {
		w   *world
		who string
	}{{&one, "one"}, {&other, "other"}, {&elsewhere, "elsewhere"}} {
		s.w.mustOpen("/")
		if got := s.w.read(); got != "known as "+s.who {
			t.Errorf("the second page of %s says %q", s.who, got)
		}
	}
	if a, b := w.service.Process(one.actor.Workspace), w.service.Process(elsewhere.actor.Workspace); a == nil || b == nil || a.Pid == b.Pid {
		t.Errorf("two workspaces have the processes %v and %v", a, b)
	}
	viewer := one.actor
	viewer.Role = identity.Viewer
	_, err := w.service.Open(identity.With(t.Context(), viewer), &browserv1.OpenRequest{Url: w.web.URL, Private: true})
	wantFault(t, "Open as a viewer", err, fault.Forbidden, "role")
}

func TestRoomIsLimited(t *testing.T) {
	t.Parallel()
	w := start(t, pages{"/": "here"}, func(s *browser.Settings) { s.Processes, s.Pages = 1, 2 })
	all := make([]world, 3)
	for i := range all {
		all[i] = *w
		all[i].newSession(w.actor.Workspace)
		all[i].mustOpen("/")
	}
	_, err := all[0].service.Read(all[0].ctx, &browserv1.ReadRequest{})
	wantFault(t, "Read of the oldest page", err, fault.NotFound, "open no more")
	for i := range all[1:] {
		if got := all[1+i].read(); got != "here" {
			t.Errorf("page %d says %q", 1+i, got)
		}
	}
	other := *w
	other.newSession(id.New[id.Workspace]())
	other.mustOpen("/")
	if w.service.Process(w.actor.Workspace) != nil {
		t.Error("two browsers run, but one is allowed")
	}
	_, err = all[1].service.Read(all[1].ctx, &browserv1.ReadRequest{})
	wantFault(t, "Read after the browser was closed for another", err, fault.NotFound, "open no more")
	all[1].mustOpen("/")
}

func TestIdlePagesAreClosed(t *testing.T) {
	t.Parallel()
	w := start(t, pages{"/": "here"}, func(s *browser.Settings) { s.Idle = time.Second })
	w.mustOpen("/")
	for w.service.Process(w.actor.Workspace) != nil {
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // nothing announces it
	}
	_, err := w.service.Read(w.ctx, &browserv1.ReadRequest{})
	wantFault(t, "Read of an idle page", err, fault.NotFound, "browser_open")
}

func TestBrowserThatDies(t *testing.T) {
	t.Parallel()
	w := start(t, pages{"/": "here"})
	w.mustOpen("/")
	if err := w.service.Signal(w.actor.Workspace, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for w.service.Process(w.actor.Workspace) != nil {
		time.Sleep(time.Millisecond) //nolint:forbidigo // the kernel does not announce it
	}
	_, err := w.service.Read(w.ctx, &browserv1.ReadRequest{})
	wantFault(t, "Read after the browser died", err, fault.NotFound, "browser_open")
	w.mustOpen("/")
}

// TestStop stops a call whose server does not answer. The server sees the connection closed.
func TestStop(t *testing.T) {
	t.Parallel()
	asked, left := make(chan struct{}, 16), make(chan struct{}, 16)
	w := share(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hang" {
			_, _ = io.WriteString(w, "<p>here")
			return
		}
		asked <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	}))
	w.mustOpen("/")
	ctx, cancel := context.WithCancel(w.ctx)
	go func() { <-asked; cancel() }()
	begin := time.Now()
	_, err := w.service.Open(ctx, &browserv1.OpenRequest{Url: w.web.URL + "/hang", Private: true})
	if err == nil {
		t.Error("a stopped call succeeded")
	}
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Fatalf("the server does not see the connection closed; the call ended with %v", err)
	}
	t.Logf("closed %v after the call began", time.Since(begin))
	w.mustOpen("/")
	if got := w.read(); got != "here" {
		t.Errorf("after a stopped call, the page says %q", got)
	}
}

// TestStopOfSlowBrowser stops a call while Chromium does nothing. The server sees the connection
// closed nevertheless, and the connection of another page stays.
func TestStopOfSlowBrowser(t *testing.T) {
	t.Parallel()
	asked, left, kept := make(chan struct{}, 16), make(chan struct{}, 16), make(chan context.Context, 16)
	needChromium(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stay":
			_, _ = io.WriteString(w, "<p>here<script>fetch('/wait')</script>")
		case "/wait":
			kept <- r.Context()
			<-r.Context().Done()
		case "/hang":
			asked <- struct{}{}
			<-r.Context().Done()
			left <- struct{}{}
		}
	}))
	t.Cleanup(web.Close)
	// Without a namespace, in which Signal would not reach it.
	service, err := browser.NewWith(settings(t, web.Listener.Addr().String()), natstest.Log(t), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	run(t, service)
	w := &world{t: t, web: web, service: service}
	w.newSession(id.New[id.Workspace]())
	w.mustOpen("/stay")
	waits := <-kept
	w.newSession(w.actor.Workspace)
	ctx, cancel := context.WithCancel(w.ctx)
	go func() {
		<-asked
		if err := w.service.Signal(w.actor.Workspace, syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		cancel()
	}()
	if _, err := w.service.Open(ctx, &browserv1.OpenRequest{Url: w.web.URL + "/hang", Private: true}); err == nil {
		t.Error("a stopped call succeeded")
	}
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Fatal("the connection was still open a minute after the stop")
	}
	if waits.Err() != nil {
		t.Error("the request of another page has ended")
	}
	if err := w.service.Signal(w.actor.Workspace, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// TestLeftoversAreRemoved starts a Service beside the folders of a killed process, of one that
// runs, and of another program.
func TestLeftoversAreRemoved(t *testing.T) {
	t.Parallel()
	left, kill, err := browser.NewFolder()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(left, "profile", "Default"), 0o700); err != nil {
		t.Fatal(err)
	}
	used, unlock, err := browser.NewFolder()
	if err != nil {
		t.Fatal(err)
	}
	link := left + "-link" // to a folder that is not ours
	other := t.TempDir()
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	kill() // the kernel closes what a killed process has open
	w := start(t, pages{"/": "here"})
	for _, err = os.Stat(left); !errors.Is(err, fs.ErrNotExist); _, err = os.Stat(left) {
		time.Sleep(time.Millisecond) //nolint:forbidigo // nothing announces it
	}
	w.mustOpen("/") // after Run has looked at all of them
	for _, path := range []string{used, other, link} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("what is not left over is removed: %v", err)
		}
	}
	unlock()
	if err := errors.Join(os.Remove(used), os.Remove(link)); err != nil {
		t.Error(err)
	}
}

func TestMissingChromium(t *testing.T) {
	t.Parallel()
	var cfg browser.Settings
	if err := conf.SetDefaults(&cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Chromium = "/no/such/chromium"
	s, err := browser.New(cfg, natstest.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	if why := s.Unavailable(); !strings.Contains(why, "set CHROMIUM") {
		t.Errorf("Unavailable = %q", why)
	}
	_, err = s.Open(identity.With(t.Context(), identity.Actor{Workspace: id.New[id.Workspace](), Session: id.New[id.Session](), Role: identity.Editor}), &browserv1.OpenRequest{Url: "https://example.com", Private: true})
	wantFault(t, "Open without Chromium", err, fault.Conflict, "no program")
	cfg.Chromium = "/bin/false"
	if s, err = browser.New(cfg, natstest.Log(t)); err != nil {
		t.Fatal(err)
	}
	run(t, s)
	if why := s.Unavailable(); why != "" {
		t.Errorf("Unavailable before the first start = %q", why)
	}
	_, err = s.Open(identity.With(t.Context(), identity.Actor{Workspace: id.New[id.Workspace](), Session: id.New[id.Session](), Role: identity.Editor}), &browserv1.OpenRequest{Url: "https://example.com", Private: true})
	wantFault(t, "Open with a Chromium that does not start", err, fault.Conflict, "does not work now")
	if why := s.Unavailable(); !strings.Contains(why, "does not start") {
		t.Errorf("Unavailable after a failed start = %q", why)
	}
}

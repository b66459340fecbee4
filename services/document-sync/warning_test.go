package documentsync_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	documentsync "signalbox.dev/services/document-sync"
)

// TestWarnings writes Markdown that a document cannot represent: the response has warnings,
// also when it is repeated.
func TestWarnings(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	c := w.start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, c, "n", "one\n\n```html\n<div>\n```\n").GetId()
	kbd := func(line int32) []*documentv1.Warning {
		return []*documentv1.Warning{{Line: line, What: "the HTML <kbd>", KeptAs: "text"}}
	}
	type answer interface{ GetWarnings() []*documentv1.Warning }
	for _, tt := range []struct {
		name string
		call func(key string) (answer, error)
		want []*documentv1.Warning
	}{
		{"create", func(key string) (answer, error) {
			return c.Create(ctx, &documentv1.CreateRequest{Name: "n", Markdown: "a\n\n<kbd>b</kbd>", OperationKey: key})
		}, kbd(3)},
		{"append", func(key string) (answer, error) {
			return c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: "two\n<kbd>b</kbd>", OperationKey: key})
		}, kbd(2)},
		{"edit", func(key string) (answer, error) {
			return c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "two", NewText: "<kbd>2</kbd>", OperationKey: key})
		}, kbd(7)},
		{"edit of code", func(key string) (answer, error) {
			return c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "<div>", NewText: "<kbd>", OperationKey: key})
		}, nil},
		{"replace", func(key string) (answer, error) {
			return c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "<kbd>c</kbd>", OperationKey: key})
		}, kbd(1)},
		{"replace from a base", func(key string) (answer, error) {
			return c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "one\n\n<kbd>c</kbd>", OperationKey: key, Base: 1})
		}, kbd(3)},
	} {
		key := newKey()
		for range 2 {
			got, err := tt.call(key)
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if diff := cmp.Diff(tt.want, got.GetWarnings(), protocmp.Transform()); diff != "" {
				t.Errorf("warnings of %s (-want +got):\n%s", tt.name, diff)
			}
		}
	}
}

package prosemirror_test

import (
	"fmt"

	"signalbox.dev/pkg/prosemirror"
)

func ExampleSchema_Parse() {
	doc, err := prosemirror.TipTap().Parse("# Plan\n\n- [x] read *this*\n- [ ] <u>write</u> that\n")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(doc.Content[1].Content[0].Attrs["checked"], doc.TextContent())
	fmt.Print(prosemirror.TipTap().Render(doc))
	// Output:
	// true Planread thiswrite that
	// # Plan
	//
	// - [x] read *this*
	// - [ ] <u>write</u> that
}

func ExampleSchema_Diff() {
	s := prosemirror.TipTap()
	doc, _ := s.Parse("# Plan\n\nWe ship on *Monday* at noon.\n")
	next, _, err := s.Edit(doc, "at noon", "at nine", false)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, op := range s.Diff(doc, next) {
		edit := op.(prosemirror.EditText)
		for _, step := range edit.Delta {
			fmt.Printf("%v keep %d, insert %q, delete %d\n", edit.Path, step.Retain, step.Insert, step.Delete)
		}
	}
	// Output:
	// [1 0] keep 22, insert "", delete 0
	// [1 0] keep 0, insert "ine", delete 0
	// [1 0] keep 0, insert "", delete 3
}

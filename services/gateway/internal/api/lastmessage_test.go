package api

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestManyFields: what is kept of a chat's body is bounded as a whole.
func TestManyFields(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 1<<20)
	sent := make(chan int, 1)
	r, w := io.Pipe()
	go func() {
		n := 0
		_, err := io.WriteString(w, `{"id":"c"`)
		for ; err == nil && n < limitChat>>20; n++ {
			_, err = fmt.Fprintf(w, `,"%d":%q`, n, text)
		}
		w.CloseWithError(err)
		sent <- n
	}()
	_, err := lastMessageOf(r)
	r.Close()
	if n := <-sent; !errors.Is(err, errValueTooLarge) || n > limitMessage>>20+1 {
		t.Errorf("the error is %v after %d MiB, want %v after %d", err, n, errValueTooLarge, limitMessage>>20)
	}
}

package mcp_test

import (
	"bytes"
	"compress/gzip"
	"strings"
)

// gzipBomb is 64 MiB of spaces.
var gzipBomb = func() string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for range 64 {
		_, _ = w.Write([]byte(strings.Repeat(" ", 1<<20)))
	}
	_ = w.Close()
	return b.String()
}()

package documentsync

import (
	"encoding/base64"
	"encoding/binary"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/document-sync/internal/store"
)

const (
	defaultPage = 20
	maxPage     = 100
)

func pageSize(n int32) (int, error) {
	switch {
	case n == 0:
		return defaultPage, nil
	case n < 0 || n > maxPage:
		return 0, fault.New(fault.Invalid, "page_size: is %d; use 1 to %d, or leave it out for %d", n, maxPage, defaultPage)
	}
	return int(n), nil
}

// A page token is the exact position after the previous page. It is opaque to callers.

func formatCursor(p store.Cursor) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(p.UpdatedAt.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, p.ID.UUID[:]...))
}

func parseCursor(token string) (*store.Cursor, error) {
	if token == "" {
		return nil, nil //nolint:nilnil // no token means the first page, which has no predecessor
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != 24 {
		return nil, errToken()
	}
	micros := int64(binary.BigEndian.Uint64(b))
	if micros < 0 || micros > maxMicros {
		return nil, errToken()
	}
	p := &store.Cursor{UpdatedAt: time.UnixMicro(micros)}
	copy(p.ID.UUID[:], b[8:])
	return p, nil
}

// maxMicros is the year 9999, well within the range of Postgres.
const maxMicros = 253_402_300_799_000_000

func formatVersion(v int64) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(v)))
}

func parseVersion(token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != 8 {
		return 0, errToken()
	}
	v := int64(binary.BigEndian.Uint64(b))
	if v <= 0 {
		return 0, errToken()
	}
	return v, nil
}

func errToken() error {
	return fault.New(fault.Invalid, "page_token: unknown; pass the next_page_token of the previous page unchanged")
}

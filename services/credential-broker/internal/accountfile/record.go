package accountfile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
)

const (
	maxLine = 256 << 10 // a longer one is none of ours
	maxText = 8 << 10   // of a field
	maxUses = 100_000   // that are remembered
	maxSeen = 16 << 20  // bytes that are read for them at first, while others wait for the lock
	maxRows = 1 << 53   // a row of another number is none of ours
)

const use = "used" // the action of a row about a use

// End is where the record ended when the file was written.
type End struct {
	Sequence int64  `json:"sequence"`
	Hash     []byte `json:"hash"`
	Size     int64  `json:"size"`
}

// Record has a row written to the record before what else Update changes. Number, id,
// time and hashes are made then. A use of an account in a session is written once.
func (s *State) Record(r audit.Row) { s.recorded = append(s.recorded, r) }

// Form says what a line of the record is.
type Form int

// The forms.
const (
	Whole   Form = iota // a row, as it was written
	Touched             // a row, in other words than it would have been written in
	CutOff              // the beginning of a row: who wrote it died, or the machine stopped
	Strange             // no row
)

// Line is a line of the record, with the row that it is, if it is one.
type Line struct {
	audit.Row
	Form Form
}

// IsRow reports whether the line is a row, also one that was touched.
func (l *Line) IsRow() bool { return l.Form == Whole || l.Form == Touched }

// Recorded returns the lines of the record, in their order, and where it ended when the
// file was written: nil where the file does not know. Rows that were written since are
// among them.
func (f *File) Recorded(ctx context.Context) (*audit.Head, iter.Seq2[Line, error], error) {
	st, err := f.View(ctx) // first: the record never ends before this
	if err != nil {
		return nil, nil, err
	}
	var head *audit.Head
	if st.Audit != nil {
		head = &audit.Head{Sequence: st.Audit.Sequence, Hash: st.Audit.Hash}
	}
	return head, f.record.lines, nil
}

// note appends what a State has recorded, with the lock held, and has the State say where
// the record ends now. undo takes the rows back, of what was not done after all.
func (f *File) note(s *State) (undo func(), err error) {
	rows := s.recorded
	s.recorded = nil
	if len(rows) == 0 {
		return func() {}, nil
	}
	end, undo, err := f.record.append(s.Audit, rows)
	if err != nil {
		return nil, f.record.unwritable(err)
	}
	s.Audit = end
	return undo, nil
}

// CanRecord returns an error where nothing could be appended to the record, which is made
// where it is not there. It is for whoever is about to do what cannot be undone, and would
// find out after.
func (f *File) CanRecord() error {
	file, err := f.record.open()
	if err != nil {
		return f.record.unwritable(err)
	}
	_ = file.Close() // nothing was written
	return nil
}

// record is the audit beside the file: a row a line, which stays as it was written.
type record struct {
	path   string
	create func(path string, flag int) (file *os.File, made bool, err error)
	// uses are those that it holds up to seen; whoever has the lock may change them.
	uses map[useOf]struct{}
	seen int64
}

type useOf struct {
	account id.Account
	session id.Session
}

// line is a row as it is written.
type line struct {
	Sequence int64      `json:"sequence"`
	ID       uuid.UUID  `json:"id"`
	At       time.Time  `json:"at"`
	Action   string     `json:"action"`
	Account  id.Account `json:"account_id"`
	Provider string     `json:"provider"`
	Origin   string     `json:"origin"`
	Member   *id.Member `json:"member_id,omitempty"`
	Service  string     `json:"service"`
	Address  string     `json:"address,omitempty"`
	Session  id.Session `json:"session_id"`
	Detail   string     `json:"detail,omitempty"`
	Prev     []byte     `json:"prev"`
	Hash     []byte     `json:"hash"`
}

// append writes rows behind the last one and returns where the record ends then. After an
// error it is as it was.
func (c *record) append(end *End, rows []audit.Row) (next *End, undo func(), err error) {
	undo = func() {}
	file, err := c.open()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }() // what counts is synced
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	size := info.Size()
	if rows, err = c.news(file, size, rows); err != nil || len(rows) == 0 {
		return end, undo, err
	}
	last, whole, err := lastOf(file, size, end)
	if err != nil {
		return nil, nil, err
	}
	text, err := chain(&last, rows)
	if err != nil {
		return nil, nil, err
	}
	if !whole { // somebody died while they wrote it
		text = append([]byte("\n"), text...)
	}
	undo = func() {
		_ = os.Truncate(c.path, size) // at worst there is a row of what was not done
		c.uses, c.seen = nil, 0
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		undo()
		return nil, nil, err
	}
	last.Size = size + int64(len(text))
	return &last, undo, nil
}

// open opens the record to append to it. One that is not there is made, durably.
func (c *record) open() (*os.File, error) {
	file, made, err := c.create(c.path, os.O_RDWR|os.O_APPEND)
	if err != nil || !made {
		return file, err
	}
	if err := syncFolder(filepath.Dir(c.path)); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

// openRegular opens a file without waiting, as somebody would at a pipe in its place, and
// refuses what is no file.
func openRegular(path string, flag int) (*os.File, error) {
	file, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

func (c *record) unwritable(err error) error {
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the audit %s cannot be written: %v", c.path, err))
}

// chain writes rows that follow a last one, which becomes the last of them.
func chain(last *End, rows []audit.Row) (text []byte, err error) {
	for _, r := range rows {
		r.ID, err = uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("name a row: %w", err)
		}
		r.At = time.Now().UTC().Truncate(time.Microsecond)
		r.Sequence, r.Prev = last.Sequence+1, last.Hash
		for _, field := range []*string{&r.Action, &r.Provider, &r.Origin, &r.Service, &r.Address, &r.Detail} {
			*field = strings.ToValidUTF8((*field)[:min(len(*field), maxText)], "") // as it is read back
		}
		r.Hash = r.Sum()
		b, err := encodeRow(&r)
		if err != nil {
			return nil, fmt.Errorf("encode a row: %w", err)
		}
		text = append(append(text, b...), '\n')
		last.Sequence, last.Hash = r.Sequence, r.Hash
	}
	return text, nil
}

// lastOf returns the row that the next one follows, and whether the record ends with a
// whole line. Where rows are missing, or the last is another one, the next follows those
// that were written: that they are not there stays visible.
func lastOf(file io.ReaderAt, size int64, end *End) (last End, whole bool, err error) {
	last.Hash = make([]byte, sha256.Size)
	if end != nil {
		last = *end
		if end.Size == size {
			return last, true, nil
		}
	}
	whole = true
	from := int64(0)
	if end != nil && endsAt(file, size, end) {
		from = end.Size
	}
	err = eachLine(file, from, size, func(text []byte, next int64) bool {
		if r, ok := parseRow(text); ok && r.Sequence > last.Sequence && r.Sequence < maxRows/2 {
			last.Sequence, last.Hash = r.Sequence, r.Hash
		}
		whole = next > 0
		return true
	})
	return last, whole, err
}

// endsAt reports whether the row with which a record ended is where it was.
func endsAt(file io.ReaderAt, size int64, end *End) bool {
	if end.Size <= 0 || end.Size > size {
		return false
	}
	text := make([]byte, min(end.Size, maxLine))
	if _, err := file.ReadAt(text, end.Size-int64(len(text))); err != nil {
		return false
	}
	text, ended := bytes.CutSuffix(text, []byte("\n"))
	r, ok := parseRow(text[bytes.LastIndexByte(text, '\n')+1:])
	return ended && ok && r.Sequence == end.Sequence && bytes.Equal(r.Hash, end.Hash)
}

// news leaves uses out that are in the record.
func (c *record) news(file io.ReaderAt, size int64, rows []audit.Row) ([]audit.Row, error) {
	if !slices.ContainsFunc(rows, func(r audit.Row) bool { return r.Action == use }) {
		return rows, nil
	}
	if c.uses == nil || size < c.seen {
		// Of a use from before this there may be another row, after this process has begun.
		c.uses, c.seen = map[useOf]struct{}{}, max(0, size-maxSeen)
	}
	err := eachLine(file, c.seen, size, func(text []byte, next int64) bool {
		if r, ok := parseRow(text); ok && r.Action == use && next > 0 {
			if len(c.uses) >= maxUses {
				clear(c.uses)
			}
			c.uses[useOf{r.Account, r.Session}] = struct{}{}
		}
		c.seen = max(c.seen, next)
		return true
	})
	if err != nil {
		return nil, err
	}
	var out []audit.Row
	now := map[useOf]struct{}{}
	for _, r := range rows {
		key := useOf{r.Account, r.Session}
		if r.Action == use {
			_, known := c.uses[key]
			_, again := now[key]
			if known || again {
				continue
			}
			now[key] = struct{}{}
		}
		out = append(out, r)
	}
	return out, nil
}

// lines yields what the record holds.
func (c *record) lines(yield func(Line, error) bool) {
	file, err := openRegular(c.path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var info fs.FileInfo
	if err == nil {
		defer func() { _ = file.Close() }() // it was only read
		info, err = file.Stat()
	}
	if err == nil {
		more := true
		err = eachLine(file, 0, info.Size(), func(text []byte, _ int64) bool {
			more = yield(readLine(text), nil)
			return more
		})
		if !more {
			return
		}
	}
	if err != nil {
		yield(Line{}, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the audit %s cannot be read: %v", c.path, err)))
	}
}

// readLine says what a line is. A row is so only in the very bytes that it was written in:
// what parses to the same row may hold more, for people to read.
func readLine(text []byte) Line {
	r, ok := parseRow(text)
	switch {
	case !ok && cutOff(text):
		return Line{Form: CutOff}
	case !ok:
		return Line{Form: Strange}
	}
	if b, err := encodeRow(&r); err != nil || !bytes.Equal(b, text) {
		return Line{r, Touched}
	}
	return Line{r, Whole}
}

// cutOff reports whether a line is the beginning of a row. After it, a machine that
// stopped may have left a piece that was never written.
func cutOff(text []byte) bool {
	const begin = `{"sequence":`
	some := bytes.TrimRight(text, "\x00")
	n := min(len(some), len(begin))
	if len(text) == 0 || string(some[:n]) != begin[:n] {
		return false
	}
	err := json.NewDecoder(bytes.NewReader(some)).Decode(&line{})
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

func encodeRow(r *audit.Row) ([]byte, error) {
	return json.Marshal(line{
		Sequence: r.Sequence, ID: r.ID, At: r.At, Action: r.Action, Account: r.Account, Provider: r.Provider, Origin: r.Origin,
		Member: r.Member, Service: r.Service, Address: r.Address, Session: r.Session, Detail: r.Detail, Prev: r.Prev, Hash: r.Hash,
	})
}

func parseRow(text []byte) (audit.Row, bool) {
	var l line
	if len(text) == 0 || json.Unmarshal(text, &l) != nil || l.Sequence < 1 || l.Sequence > maxRows {
		return audit.Row{}, false
	}
	return audit.Row{
		Sequence: l.Sequence, ID: l.ID, At: l.At, Action: l.Action, Account: l.Account, Provider: l.Provider, Origin: l.Origin,
		Member: l.Member, Service: l.Service, Address: l.Address, Session: l.Session, Detail: l.Detail, Prev: l.Prev, Hash: l.Hash,
	}, true
}

// eachLine gives fn the lines between two places of a file until it wants no more, and
// where the next one begins; that is 0 where the end of the last is missing. One that is
// too long is given as nothing.
func eachLine(file io.ReaderAt, from, to int64, fn func(text []byte, next int64) bool) error {
	r := bufio.NewReaderSize(io.NewSectionReader(file, from, to-from), maxLine)
	for at := from; ; {
		began := at
		text, err := r.ReadSlice('\n')
		at += int64(len(text))
		for errors.Is(err, bufio.ErrBufferFull) {
			text, err = r.ReadSlice('\n')
			at += int64(len(text))
			text = nil
		}
		next := at
		switch {
		case errors.Is(err, io.EOF) && at == began:
			return nil
		case errors.Is(err, io.EOF):
			next = 0
		case err != nil:
			return err
		}
		if !fn(bytes.TrimSuffix(text, []byte("\n")), next) || next == 0 {
			return nil
		}
	}
}

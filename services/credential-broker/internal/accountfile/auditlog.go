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
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
)

const (
	maxLine = 256 << 10 // a longer one is no row
	maxText = 8 << 10   // of a field
	maxUses = 100_000   // that are remembered
	maxSeen = 16 << 20  // bytes that are read for them at first, while others wait for the lock
	maxRows = 1 << 53   // a higher number is no row's
)

const use = "used" // the action of a row about a use

// End is where the audit ended when the file was written.
type End struct {
	Sequence int64  `json:"sequence"`
	Hash     []byte `json:"hash"`
	Size     int64  `json:"size"`
}

// Record has a row written to the audit before what else Update changes. Number, id, time and
// hashes are set then. A use of an account in a session is written once.
func (s *State) Record(r audit.Row) { s.recorded = append(s.recorded, r) }

// Form says what a line of the audit is.
type Form int

// The forms.
const (
	Whole   Form = iota // a row, as it was written
	Touched             // a row that is not byte for byte as it would have been written
	CutOff              // the beginning of a row: its writer died, or the machine stopped
	Strange             // no row
)

// Line is a line of the audit, with the row that it is, if it is one.
type Line struct {
	audit.Row
	Form Form
}

// IsRow reports whether the line is a row, touched or not.
func (l *Line) IsRow() bool { return l.Form == Whole || l.Form == Touched }

// Recorded returns the lines of the audit in their order, and where it ended when the file was
// written; nil if nothing was recorded then. Rows that were written since are included.
func (f *File) Recorded(ctx context.Context) (*hashchain.Head, iter.Seq2[Line, error], error) {
	st, err := f.View(ctx) // first: the audit never ends before this
	if err != nil {
		return nil, nil, err
	}
	var head *hashchain.Head
	if st.Audit != nil {
		head = &hashchain.Head{Sequence: st.Audit.Sequence, Hash: st.Audit.Hash}
	}
	return head, f.audit.lines, nil
}

// appendAudit appends what a State has recorded, with the lock held, and sets where the audit
// ends now. undo takes the rows back.
func (f *File) appendAudit(s *State) (undo func(), err error) {
	rows := s.recorded
	s.recorded = nil
	if len(rows) == 0 {
		return func() {}, nil
	}
	end, undo, err := f.audit.append(s.Audit, rows)
	if err != nil {
		f.audit.uses = nil
		return nil, f.audit.unwritable(err)
	}
	s.Audit = end
	return undo, nil
}

// CanRecord returns an error if nothing could be appended to the audit, which it creates if
// need be. It is for callers that are about to do what cannot be undone.
func (f *File) CanRecord() error {
	file, err := f.audit.open()
	if err != nil {
		return f.audit.unwritable(err)
	}
	_ = file.Close() // nothing was written
	return nil
}

// auditLog is the audit beside the file: one row a line, which stays as it was written.
type auditLog struct {
	path   string
	create func(path string, flag int) (file *os.File, created bool, err error)
	// uses are those in the log up to seen, nil to read them again. Guarded by the file's lock.
	uses map[useKey]struct{}
	seen int64
}

type useKey struct {
	account id.Account
	session id.Session
}

// append writes rows after the last one and returns where the log ends then. After an error
// the log is as it was.
func (l *auditLog) append(end *End, rows []audit.Row) (next *End, undo func(), err error) {
	undo = func() {}
	file, err := l.open()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }() // what counts is synced
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	size := info.Size()
	if rows, err = l.unrecorded(file, size, rows); err != nil || len(rows) == 0 {
		return end, undo, err
	}
	last, whole, err := lastRow(file, size, end)
	if err != nil {
		return nil, nil, err
	}
	text, err := chain(&last, rows)
	if err != nil {
		return nil, nil, err
	}
	if !whole { // the last writer died
		text = append([]byte("\n"), text...)
	}
	undo = func() {
		_ = os.Truncate(l.path, size) // otherwise there is a row of what was not done
		l.uses = nil
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

// open opens the log to append to it. If it is not there it is created, durably.
func (l *auditLog) open() (*os.File, error) {
	file, created, err := l.create(l.path, os.O_RDWR|os.O_APPEND)
	if err != nil || !created {
		return file, err
	}
	if err := syncFolder(filepath.Dir(l.path)); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

func (l *auditLog) unwritable(err error) error {
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the audit %s cannot be written: %v", l.path, err))
}

// chain encodes rows that follow a last one, and sets last to the last of them.
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
		b, err := json.Marshal(&r)
		if err != nil {
			return nil, fmt.Errorf("encode a row: %w", err)
		}
		text = append(append(text, b...), '\n')
		last.Sequence, last.Hash = r.Sequence, r.Hash
	}
	return text, nil
}

// lastRow returns the row that the next one follows, and whether the log ends with a whole
// line. If rows are missing, or the last one was replaced, the next one follows those that were
// written, so that it stays visible that they are missing.
func lastRow(file io.ReaderAt, size int64, end *End) (last End, whole bool, err error) {
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
	for line, err := range eachLine(file, from, size) {
		if err != nil {
			return last, whole, err
		}
		if r, ok := parseRow(line.text); ok && r.Sequence > last.Sequence && r.Sequence < maxRows/2 {
			last.Sequence, last.Hash = r.Sequence, r.Hash
		}
		whole = line.next > 0
	}
	return last, whole, nil
}

// endsAt reports whether the log's last row at an End is still there.
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

// unrecorded returns rows without the uses that are in the log already.
func (l *auditLog) unrecorded(file io.ReaderAt, size int64, rows []audit.Row) ([]audit.Row, error) {
	if !slices.ContainsFunc(rows, func(r audit.Row) bool { return r.Action == use }) {
		return rows, nil
	}
	if l.uses == nil || size < l.seen {
		// An older use may get a second row, once for each process.
		l.uses, l.seen = map[useKey]struct{}{}, max(0, size-maxSeen)
	}
	for line, err := range eachLine(file, l.seen, size) {
		if err != nil {
			return nil, err
		}
		if r, ok := parseRow(line.text); ok && r.Action == use && line.next > 0 {
			if len(l.uses) >= maxUses {
				clear(l.uses)
			}
			l.uses[useKey{r.Account, r.Session}] = struct{}{}
		}
		l.seen = max(l.seen, line.next)
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r audit.Row) bool {
		key := useKey{r.Account, r.Session}
		_, known := l.uses[key]
		if r.Action == use {
			l.uses[key] = struct{}{}
		}
		return known && r.Action == use
	}), nil
}

// lines yields the lines of the log.
func (l *auditLog) lines(yield func(Line, error) bool) {
	unreadable := func(err error) {
		yield(Line{}, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the audit %s cannot be read: %v", l.path, err)))
	}
	file, err := openRegular(l.path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		unreadable(err)
		return
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		unreadable(err)
		return
	}
	for line, err := range eachLine(file, 0, info.Size()) {
		if err != nil {
			unreadable(err)
			return
		}
		if !yield(parseLine(line.text), nil) {
			return
		}
	}
}

// parseLine says what a line is. A whole row has the very bytes that were written: other bytes
// that parse to the same row may show people something else.
func parseLine(text []byte) Line {
	r, ok := parseRow(text)
	switch {
	case !ok && cutOff(text):
		return Line{Form: CutOff}
	case !ok:
		return Line{Form: Strange}
	}
	if b, err := json.Marshal(&r); err != nil || !bytes.Equal(b, text) {
		return Line{r, Touched}
	}
	return Line{r, Whole}
}

// cutOff reports whether a line is the beginning of a row. A machine that stopped may have
// left zeros after it.
func cutOff(text []byte) bool {
	const begin = `{"sequence":`
	some := bytes.TrimRight(text, "\x00")
	n := min(len(some), len(begin))
	if len(text) == 0 || string(some[:n]) != begin[:n] {
		return false
	}
	err := json.NewDecoder(bytes.NewReader(some)).Decode(&audit.Row{})
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

func parseRow(text []byte) (r audit.Row, ok bool) {
	ok = len(text) > 0 && json.Unmarshal(text, &r) == nil && r.Sequence >= 1 && r.Sequence <= maxRows
	return r, ok
}

// textLine is a line of a file, empty if it is too long, and where the next one begins; 0 if
// the line has no end. The text is valid until the next line is read.
type textLine struct {
	text []byte
	next int64
}

// eachLine yields the lines between two offsets of a file.
func eachLine(file io.ReaderAt, from, to int64) iter.Seq2[textLine, error] {
	return func(yield func(textLine, error) bool) {
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
			switch {
			case errors.Is(err, io.EOF):
				if at > began {
					yield(textLine{text, 0}, nil)
				}
				return
			case err != nil:
				yield(textLine{}, err)
				return
			}
			if !yield(textLine{bytes.TrimSuffix(text, []byte("\n")), at}, nil) {
				return
			}
		}
	}
}

package proxy

import (
	"bytes"
	"iter"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// members iterates over the members of an object in valid JSON, their names as they
// are written between the quotes. What is not an object has none.
func members(data []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		i := space(data, 0)
		if i == len(data) || data[i] != '{' {
			return
		}
		for {
			i = space(data, i+1)
			if data[i] != '"' {
				return // the end of an empty object
			}
			end := scan.StringEnd(data, i)
			from := space(data, space(data, end+1)+1) // behind the colon
			to := valueEnd(data, from)
			if !yield(data[i+1:end], data[from:to]) {
				return
			}
			if i = space(data, to); data[i] != ',' {
				return
			}
		}
	}
}

// elements iterates over the elements of an array in valid JSON. What is not an
// array has none.
func elements(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		i := space(data, 0)
		if i == len(data) || data[i] != '[' {
			return
		}
		for {
			from := space(data, i+1)
			if data[from] == ']' {
				return
			}
			to := valueEnd(data, from)
			if !yield(data[from:to]) {
				return
			}
			if i = space(data, to); data[i] != ',' {
				return
			}
		}
	}
}

// space returns the index of the first byte from i on that is not white space.
func space(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// valueEnd returns the index behind the value that begins at i.
func valueEnd(data []byte, i int) int {
	depth := 0
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = scan.StringEnd(data, i)
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			if depth > 0 {
				continue
			}
			return scalarEnd(data, i)
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// scalarEnd returns the index behind a number, true, false or null.
func scalarEnd(data []byte, i int) int {
	if n := bytes.IndexAny(data[i:], ",]} \t\r\n"); n >= 0 {
		return i + n
	}
	return len(data)
}

// topString returns the string that a member of the outermost object has, as it
// is written, or nothing. It reads no further than needed and tolerates data that
// is cut short behind it.
func topString(data []byte, member string) []byte { return stringValue(behindTop(data, member)) }

// behindTop returns what follows the name of a member of the outermost object.
func behindTop(data []byte, member string) []byte {
	depth, key := 0, false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			depth++
			key = depth == 1 && data[i] == '{'
		case '}', ']':
			depth--
		case ',':
			key = depth == 1
		case ':':
			key = false
		case '"':
			end := scan.StringEnd(data, i)
			if end < 0 {
				return nil
			}
			if key && string(data[i+1:end]) == member {
				return data[end+1:]
			}
			i = end
		}
	}
	return nil
}

// stringValue returns the string behind a colon.
func stringValue(data []byte) []byte {
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) == 0 || data[0] != ':' {
		return nil
	}
	data = bytes.TrimLeft(data[1:], " \t\r\n")
	if len(data) == 0 || data[0] != '"' {
		return nil
	}
	end := scan.StringEnd(data, 0)
	if end < 0 {
		return nil
	}
	return data[1:end]
}

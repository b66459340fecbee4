package socket

import "encoding/binary"

// opBinary is the first byte of the frame of a complete binary message.
const opBinary = 0x80 | 0x2

// frame returns the WebSocket frame of a binary message, written by fill, of about size bytes.
func frame(size int, fill func([]byte) []byte) []byte {
	const head = 10 // the maximum
	b := fill(make([]byte, head, head+size))
	n := len(b) - head
	switch {
	case n < 126:
		b = b[head-2:]
		b[1] = byte(n)
	case n < 1<<16:
		b = b[head-4:]
		b[1] = 126
		binary.BigEndian.PutUint16(b[2:], uint16(n))
	default:
		b[1] = 127
		binary.BigEndian.PutUint64(b[2:], uint64(n))
	}
	b[0] = opBinary
	return b
}

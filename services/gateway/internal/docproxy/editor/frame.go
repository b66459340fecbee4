package editor

import "encoding/binary"

// The first bytes of frames.
const (
	opBinary = 0x80 | 0x2
	opClose  = 0x80 | 0x8
	opPing   = 0x80 | 0x9
	opPong   = 0x80 | 0xa
)

func closeFrame(code int, reason string) []byte {
	reason = Clip(reason, maxReason)
	b := []byte{opClose, byte(2 + len(reason)), byte(code >> 8), byte(code)}
	return append(b, reason...)
}

// pongFrame returns the answer to a ping, whose data is at most 125 bytes.
func pongFrame(data string) []byte {
	return append([]byte{opPong, byte(len(data))}, data...)
}

// Idle returns a ping and a message, for SetIdle.
func Idle(msg []byte) []byte { return append([]byte{opPing, 0}, Message(msg)...) }

// frameSize returns the length of the frame that begins with b, if it is long; else that of b.
func frameSize(b []byte) int64 {
	if len(b) < 10 || b[1] != 127 {
		return int64(len(b))
	}
	return 10 + int64(min(binary.BigEndian.Uint64(b[2:]), 1<<40)) //nolint:gosec // it is small
}

// Message returns the frame of a binary message.
func Message(msg []byte) []byte {
	b := []byte{opBinary, byte(len(msg))} //nolint:gosec // or it is set below
	switch n := len(msg); {
	case n >= 1<<16:
		b[1] = 127
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	case n >= 126:
		b[1] = 126
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	}
	return append(b, msg...)
}

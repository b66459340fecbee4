package accountfile

// Decode reads a State as View does.
func Decode(text []byte) (*State, error) { return decode(text) }

// Version is the one that is written.
const Version = version

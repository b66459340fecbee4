//go:build !unix

package sock

import "net"

// alive knows nothing here.
func alive(*net.TCPConn) bool { return true }

package browser

import "syscall"

// dieWithParent makes the kernel kill the process when the thread that started it ends.
// chromedp starts it from a thread that lives as long as the process.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

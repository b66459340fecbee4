package pgd

import "syscall"

// namespaced runs a program in a user namespace that maps root to nobody: Postgres does not
// see root, and root keeps the files.
func namespaced() *syscall.SysProcAttr {
	a := ownGroup()
	a.Cloneflags = syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
	a.Credential = &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: true}
	return a
}

// syncAfterCrash is how files are synced before a recovery: syncing the file system takes
// half the time of syncing a thousand files one by one.
const syncAfterCrash = "syncfs"

// memoryFolder returns a folder in memory, where creating and cloning databases is ten times
// as fast, or "" if it is too small, such as the 64 MB of a container.
func memoryFolder() string {
	const dir, ample = "/dev/shm", 4 << 30
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil || st.Bavail*uint64(st.Bsize) < ample {
		return ""
	}
	return dir
}

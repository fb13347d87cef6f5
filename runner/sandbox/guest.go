package sandbox

import "path"

// GuestWorkspace is where the guest sees the workspace. It is the working
// directory of a job whose Cwd is ".".
const GuestWorkspace = "/workspace"

// The guest's identity. Its user namespace maps guest ids 0 to MapSize-1 onto
// host ids that start at MapBase, a range that neither Linux distributions nor
// systemd give to anyone. So whatever a guest gets hold of, it never shares a
// user id with the gateway or with a user of the host.
const (
	MapBase  = 0x70000000 // host uid and gid of the guest's root
	MapSize  = 1 << 16    // ids mapped
	GuestUID = 1000       // uid and gid of the job inside the guest
)

// HostUID is the host's uid and gid of files that the job may write.
const HostUID = MapBase + GuestUID

// GuestCwd returns the guest path of a job's repository-relative cwd.
func GuestCwd(cwd string) string { return path.Join(GuestWorkspace, cwd) }

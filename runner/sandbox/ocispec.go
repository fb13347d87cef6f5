package sandbox

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A View is where the parts of a guest lie for the runtime: absolute paths
// without symbolic links, in the runtime's own mount namespace.
type View struct {
	Root       string // read-only root
	Usr        string // the host's /usr, bound over Root's; empty for an image
	Workspace  string // writable
	Executable string // pinned copy, bound onto GuestExecutable
	// GuestExecutable is the job's executable as the guest names it.
	GuestExecutable string
	MemoryBytes     int64 // decides the size of the guest's temporary file systems
}

// Shares of the memory limit that the guest's temporary file systems may fill.
// They hold memory of the job, so the memory limit binds first or they fail
// with ENOSPC; either way the host is safe.
const (
	tmpShare = 2
	shmShare = 4
	devBytes = 64 << 10
)

// Resource limits of each guest process.
const (
	openFilesSoft = 1024
	openFilesHard = 4096
)

// GuestSpec returns the OCI specification of the guest: its first process is
// root inside the guest, without a capability; the job runs as GuestUID.
func GuestSpec(v View) *specs.Spec {
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: "sandbox",
		Root:     &specs.Root{Path: v.Root, Readonly: true},
		Process: &specs.Process{
			Args: []string{"controller"}, Env: []string{}, Cwd: "/",
			User: specs.User{UID: 0, GID: 0}, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: openFilesSoft, Hard: openFilesHard},
				{Type: "RLIMIT_CORE"},
			},
		},
		Mounts: guestMounts(v),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.UserNamespace},
			},
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: 0, HostID: MapBase, Size: MapSize}},
			GIDMappings: []specs.LinuxIDMapping{{ContainerID: 0, HostID: MapBase, Size: MapSize}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			Seccomp:     guestSeccomp(),
		},
	}
}

// guestMounts lists the mounts in their order: what lies over another comes
// after it.
func guestMounts(v View) []specs.Mount {
	tmpfs := func(at, mode string, bytes int64) specs.Mount {
		return specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "nodev", "mode=" + mode, fmt.Sprintf("size=%d", bytes)}}
	}
	bind := func(from, at, access string) specs.Mount {
		return specs.Mount{Destination: at, Type: "bind", Source: from, Options: []string{"rbind", access, "nosuid", "nodev"}}
	}
	var mounts []specs.Mount
	if v.Usr != "" {
		mounts = append(mounts, bind(v.Usr, "/usr", "ro"))
	}
	return append(mounts,
		specs.Mount{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		tmpfs("/dev", "0755", devBytes),
		tmpfs("/dev/shm", "1777", v.MemoryBytes/shmShare),
		tmpfs("/tmp", "1777", v.MemoryBytes/tmpShare),
		specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev"}},
		bind(v.Executable, v.GuestExecutable, "ro"),
		bind(v.Workspace, GuestWorkspace, "rw"),
	)
}

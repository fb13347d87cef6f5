package sandbox

import (
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func guest() *specs.Spec {
	return GuestSpec(View{
		Root: "/r", Usr: "/u", Workspace: "/w", Executable: "/e", GuestExecutable: "/usr/bin/tool", MemoryBytes: 1 << 30,
	})
}

// TestGuestSpecConfines holds what a careless change must not loosen.
func TestGuestSpecConfines(t *testing.T) {
	s := guest()
	if !s.Root.Readonly || !s.Process.NoNewPrivileges || s.Process.Terminal || len(s.Process.Env) > 0 {
		t.Errorf("root %+v, process %+v", s.Root, s.Process)
	}
	c := s.Process.Capabilities
	if n := len(c.Bounding) + len(c.Effective) + len(c.Permitted) + len(c.Inheritable) + len(c.Ambient); n > 0 {
		t.Errorf("%d capabilities", n)
	}
	var kinds []specs.LinuxNamespaceType
	for _, ns := range s.Linux.Namespaces {
		if ns.Path != "" {
			t.Errorf("namespace %s is shared: %s", ns.Type, ns.Path)
		}
		kinds = append(kinds, ns.Type)
	}
	for _, want := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace, specs.NetworkNamespace, specs.UTSNamespace} {
		if !slices.Contains(kinds, want) {
			t.Errorf("namespace %s is the host's", want)
		}
	}
	for _, m := range slices.Concat(s.Linux.UIDMappings, s.Linux.GIDMappings) {
		if m.ContainerID != 0 || m.HostID != MapBase || m.Size != MapSize {
			t.Errorf("mapping %+v", m)
		}
	}
	if s.Hooks != nil || len(s.Annotations) > 0 || len(s.Linux.Devices) > 0 {
		t.Errorf("hooks %v, annotations %v, devices %v", s.Hooks, s.Annotations, s.Linux.Devices)
	}
}

// TestGuestMountsWritable holds that the host's files are read-only but for
// the workspace, and that each mount lies over what it must cover.
func TestGuestMountsWritable(t *testing.T) {
	at := make(map[string]int)
	for i, m := range guest().Mounts {
		if _, twice := at[m.Destination]; twice {
			t.Errorf("%s is mounted twice", m.Destination)
		}
		at[m.Destination] = i
		for _, option := range []string{"nosuid", "nodev"} {
			if !slices.Contains(m.Options, option) {
				t.Errorf("%s is mounted without %s", m.Destination, option)
			}
		}
		if readOnly := slices.Contains(m.Options, "ro"); m.Type == "bind" && readOnly == (m.Destination == GuestWorkspace) {
			t.Errorf("%s: options %v", m.Destination, m.Options)
		}
		if m.Type == "tmpfs" && !slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "size=") }) {
			t.Errorf("%s has no size", m.Destination)
		}
	}
	for over, under := range map[string]string{"/usr/bin/tool": "/usr", "/dev/shm": "/dev", "/sys/fs/cgroup": "/sys"} {
		if at[over] < at[under] {
			t.Errorf("%s would be covered by %s", over, under)
		}
	}
	image := GuestSpec(View{Root: "/r", Workspace: "/w", Executable: "/e", GuestExecutable: "/bin/tool"})
	for _, m := range image.Mounts {
		if m.Destination == "/usr" {
			t.Error("an image's guest sees the host's /usr")
		}
	}
}

func TestGuestSeccomp(t *testing.T) {
	s := guestSeccomp()
	if s.DefaultAction != specs.ActAllow || len(s.Architectures) != 1 {
		t.Errorf("filter %+v", s)
	}
	seen := make(map[string]bool)
	for _, rule := range s.Syscalls {
		if rule.Action != specs.ActErrno {
			t.Errorf("rule for %v does %s", rule.Names, rule.Action)
		}
		for _, name := range rule.Names {
			if seen[name] || name == "clone3" {
				t.Errorf("rule for %s", name)
			}
			seen[name] = true
		}
	}
	for _, name := range []string{"socket", "socketpair", "mount", "unshare", "setns", "ptrace", "bpf", "io_uring_setup", "mknod", "mknodat", "keyctl", "chroot"} {
		if !seen[name] {
			t.Errorf("%s is allowed", name)
		}
	}
}

func TestGuestCwd(t *testing.T) {
	for cwd, want := range map[string]string{".": "/workspace", "a": "/workspace/a", "a/b c": "/workspace/a/b c"} {
		if got := GuestCwd(cwd); got != want {
			t.Errorf("GuestCwd(%q) = %q, want %q", cwd, got, want)
		}
	}
}

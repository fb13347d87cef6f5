package sandbox

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// hostFacts is what CheckHost looks at.
type hostFacts struct {
	uid        int
	arch       string
	dynamic    bool  // this binary needs a dynamic linker
	private    bool  // this binary may not be executed by other users
	oldKernel  bool  // mount_setattr(2) is missing
	userNS     bool  // user namespaces can be made
	hierarchy  error // why the cgroup controllers do not do
	executable error // why this binary could not be read
}

// CheckHost reports everything that keeps this host from running a sandbox,
// joined, one line per problem, each naming its remedy; nil if nothing does.
func CheckHost() error { return thisHost().check() }

func thisHost() hostFacts {
	facts := hostFacts{uid: os.Geteuid(), arch: runtime.GOARCH, userNS: userNamespaces()}
	facts.dynamic, facts.executable = dynamicExecutable("/proc/self/exe")
	if info, err := os.Stat("/proc/self/exe"); err == nil {
		facts.private = info.Mode().Perm()&0o001 == 0
	}
	facts.oldKernel = errors.Is(unix.MountSetattr(-1, "", 0, &unix.MountAttr{}), unix.ENOSYS)
	_, facts.hierarchy = hostHierarchies()
	return facts
}

func (f hostFacts) check() error {
	var errs []error
	add := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(f.uid != 0, "sandboxes need root: run underwrite as root (now uid %d)", f.uid)
	add(f.arch != "amd64", "sandboxes need an x86-64 machine: this is %s", f.arch)
	add(f.executable != nil, "cannot read this binary: mount /proc: %w", f.executable)
	add(f.dynamic, "this binary is dynamically linked and cannot run inside its sandbox: build it with CGO_ENABLED=0")
	add(f.private, "this binary is not executable for other users, as whom its sandbox runs: chmod o+x it")
	add(f.oldKernel, "this kernel is too old: sandboxes need Linux 5.12 or newer")
	add(!f.userNS, "user namespaces are off: set the sysctl user.max_user_namespaces above 0")
	if f.hierarchy != nil {
		errs = append(errs, f.hierarchy)
	}
	return errors.Join(errs...)
}

func userNamespaces() bool {
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		return false
	}
	limit, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	return err != nil || strings.TrimSpace(string(limit)) != "0"
}

// dynamicExecutable reports whether the ELF file at path names an interpreter.
func dynamicExecutable(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return true, nil
		}
	}
	return false, nil
}

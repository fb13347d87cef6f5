package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// owner identifies the process that made a cgroup or a mount, so that Sweep
// can tell a crashed owner's remains from a living one's. The start time makes
// a reused process id another owner, the namespace keeps processes that count
// their ids differently apart.
type owner struct {
	pid       int
	start     uint64 // clock ticks after boot
	namespace uint64 // inode of the pid namespace
}

const (
	ownerFormat     = "%d-%d-%d"
	workspacePrefix = "underwrite-workspace:"
)

func (o owner) String() string { return fmt.Sprintf(ownerFormat, o.pid, o.start, o.namespace) }

// parseOwner is the strict inverse of String.
func parseOwner(s string) (owner, bool) {
	var o owner
	if _, err := fmt.Sscanf(s, ownerFormat, &o.pid, &o.start, &o.namespace); err != nil || o.String() != s {
		return owner{}, false
	}
	return o, true
}

// self is this process as an owner.
func self() (owner, error) {
	start, err := startTime(os.Getpid())
	if err != nil {
		return owner{}, err
	}
	ns, err := pidNamespace()
	return owner{pid: os.Getpid(), start: start, namespace: ns}, err
}

// alive reports whether the owner still runs. An owner from another pid
// namespace counts as alive, since nothing is known about it.
func (o owner) alive() bool {
	if ns, err := pidNamespace(); err != nil || ns != o.namespace {
		return true
	}
	start, err := startTime(o.pid)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	return err != nil || start == o.start
}

func pidNamespace() (uint64, error) {
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 0, fmt.Errorf("pid namespace: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("pid namespace %q: %w", link, err)
	}
	return n, nil
}

// startTime returns field 22 of /proc/PID/stat. The command name before it is
// in parentheses and may contain anything, so fields count from the last ")".
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := cutLast(string(stat), ")")
	fields := strings.Fields(rest)
	const starttime = 22 - 3 // the state, field 3, is the first after the name
	if !ok || len(fields) <= starttime {
		return 0, fmt.Errorf("process %d: malformed stat", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, fmt.Errorf("process %d has ended: %w", pid, os.ErrNotExist)
	}
	return strconv.ParseUint(fields[starttime], 10, 64)
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// workspaceSource is the "device" name of this process's workspace mounts.
func workspaceSource() string {
	o, err := self()
	if err != nil {
		return workspacePrefix + "unknown"
	}
	return workspacePrefix + o.String()
}

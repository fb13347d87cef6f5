package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultCgroupParent is the cgroup below which jobs run.
const DefaultCgroupParent = "/underwrite"

const (
	cpuPeriod   = 100_000 // microseconds, the kernel's default scheduling period
	killTimeout = 10 * time.Second
	killPause   = 2 * time.Millisecond
	hugePage    = 2 << 20 // bytes
)

// A Cgroup holds one job with everything that serves it: supervisor, sentry,
// gofer, and the job's memory. It is one directory in each hierarchy. Its name
// carries its owner, so that Sweep finds it if the owner dies.
type Cgroup struct {
	parent               string // path below each mount
	name                 string
	trees                []hierarchy
	memory, cpu, cpuacct hierarchy
	memoryLimit          int64 // bytes
}

// NewCgroup makes a cgroup for the job id below parent with memory and swap
// together limited to memoryBytes, and CPU time to that of cpus processors.
func NewCgroup(parent, id string, memoryBytes int64, cpus int) (*Cgroup, error) {
	h, err := hostHierarchies()
	if err != nil {
		return nil, err
	}
	o, err := self()
	if err != nil {
		return nil, err
	}
	c := &Cgroup{
		parent: parent, name: id + "." + o.String(), trees: h.distinct(),
		memory: h.memory, cpu: h.cpu, cpuacct: h.cpuacct, memoryLimit: memoryBytes,
	}
	if err := c.create(cpus); err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup for %s: %w", id, err), c.Remove())
	}
	return c, nil
}

func (c *Cgroup) create(cpus int) error {
	for _, tree := range c.trees {
		if err := c.mkdir(tree); err != nil {
			return err
		}
	}
	if err := c.limitMemory(); err != nil {
		return err
	}
	return c.limitCPU(cpus)
}

// mkdir makes the job's directory in one tree. Another process that ends its
// last job may remove the parent at any moment, hence the second try.
func (c *Cgroup) mkdir(tree hierarchy) error {
	var err error
	for range 10 {
		parent := filepath.Join(tree.mount, c.parent)
		if err = os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
		if tree.v2 {
			if err = c.delegate(tree); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err = os.Mkdir(c.dir(tree), 0o755); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// delegate enables the controllers from the mount down to the parent.
func (c *Cgroup) delegate(tree hierarchy) error {
	var want []string
	if c.memory == tree {
		want = append(want, "+memory")
	}
	if c.cpu == tree {
		want = append(want, "+cpu")
	}
	if len(want) == 0 {
		return nil
	}
	at := tree.mount
	for _, name := range append([]string{""}, strings.Split(strings.Trim(c.parent, "/"), "/")...) {
		at = filepath.Join(at, name)
		file := filepath.Join(at, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte(strings.Join(want, " ")), 0); err != nil {
			if errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("%w: processes live in %s: move them to a child, or name an empty cgroup as the parent", ErrNoController, at)
			}
			return err
		}
	}
	return nil
}

func (c *Cgroup) dir(tree hierarchy) string { return filepath.Join(tree.mount, c.parent, c.name) }

// Dirs returns the job's directory in every hierarchy. A process joins by
// writing "0" into cgroup.procs of each.
func (c *Cgroup) Dirs() []string {
	var dirs []string
	for _, tree := range c.trees {
		dirs = append(dirs, c.dir(tree))
	}
	return dirs
}

// limitMemory leaves no swap beside the limit. Without swap accounting that
// needs a host without swap.
func (c *Cgroup) limitMemory() error {
	limit := strconv.FormatInt(c.memoryLimit, 10)
	limitFile, swapFile, swap := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit
	if c.memory.v2 {
		limitFile, swapFile, swap = "memory.max", "memory.swap.max", "0"
		if err := c.write(c.memory, "memory.oom.group", "1"); err != nil {
			return err
		}
	}
	if err := c.write(c.memory, limitFile, limit); err != nil {
		return err
	}
	err := c.write(c.memory, swapFile, swap)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return err
	}
	if strings.Count(string(swaps), "\n") > 1 { // a heading, then one line each
		return fmt.Errorf("%w: memory+swap: boot with swapaccount=1 or turn swap off", ErrNoController)
	}
	return nil
}

func (c *Cgroup) limitCPU(cpus int) error {
	quota := strconv.Itoa(cpus * cpuPeriod)
	if c.cpu.v2 {
		return c.write(c.cpu, "cpu.max", quota+" "+strconv.Itoa(cpuPeriod))
	}
	if err := c.write(c.cpu, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)); err != nil {
		return err
	}
	return c.write(c.cpu, "cpu.cfs_quota_us", quota)
}

// write writes to an existing control file; it never makes one.
func (c *Cgroup) write(tree hierarchy, file, value string) error {
	f, err := os.OpenFile(filepath.Join(c.dir(tree), file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// CPUTime returns the CPU time used in the cgroup so far.
func (c *Cgroup) CPUTime() (time.Duration, error) {
	if c.cpuacct.v2 {
		usec, err := c.counter(c.cpuacct, "cpu.stat", "usage_usec")
		return time.Duration(usec) * time.Microsecond, err
	}
	nanos, err := c.counter(c.cpuacct, "cpuacct.usage", "")
	return time.Duration(nanos), err
}

// OOMKills returns how many processes of the cgroup the kernel has killed for
// want of memory, and whether the cgroup itself was at its limit. If it was
// not, the host was out of memory, which is no fault of the job.
func (c *Cgroup) OOMKills() (kills int64, atLimit bool, err error) {
	if c.memory.v2 {
		kills, err1 := c.counter(c.memory, "memory.events", "oom_kill")
		hits, err2 := c.counter(c.memory, "memory.events", "max")
		return kills, hits > 0, errors.Join(err1, err2)
	}
	// Version 1 does not count the hits when swap has the same limit: the peak
	// tells, which a failed allocation of a huge page leaves just below.
	kills, err1 := c.counter(c.memory, "memory.oom_control", "oom_kill")
	peak, err2 := c.MemoryPeak()
	return kills, peak+hugePage > c.memoryLimit, errors.Join(err1, err2)
}

// MemoryPeak returns the most memory that the cgroup has held, in bytes. A
// version 2 kernel before 5.19 does not record it: the present use then.
func (c *Cgroup) MemoryPeak() (int64, error) {
	if !c.memory.v2 {
		return c.counter(c.memory, "memory.max_usage_in_bytes", "")
	}
	peak, err := c.counter(c.memory, "memory.peak", "")
	if errors.Is(err, fs.ErrNotExist) {
		return c.counter(c.memory, "memory.current", "")
	}
	return peak, err
}

// counter reads a file that is one number, or the number after key in a file
// of "key number" lines.
func (c *Cgroup) counter(tree hierarchy, file, key string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(c.dir(tree), file))
	if err != nil {
		return 0, err
	}
	if n, ok := parseCounter(string(b), key); ok {
		return n, nil
	}
	return 0, fmt.Errorf("%s: no counter %q", file, key)
}

func parseCounter(text, key string) (int64, bool) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case key == "" && len(fields) == 1:
		case key != "" && len(fields) == 2 && fields[0] == key:
			fields = fields[1:]
		default:
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		return n, err == nil
	}
	return 0, false
}

// procs lists the processes in the cgroup, over all hierarchies. A directory
// that is gone holds none.
func (c *Cgroup) procs() ([]int, error) {
	var pids []int
	for _, dir := range c.Dirs() {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("%s: process id %q", dir, field)
			}
			if pid != 0 && !slices.Contains(pids, pid) { // 0: outside this pid namespace
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Kill kills every process in the cgroup and returns when none is left, or an
// error wrapping os.ErrDeadlineExceeded.
func (c *Cgroup) Kill() error {
	for deadline := time.Now().Add(killTimeout); ; time.Sleep(killPause) {
		pids, err := c.procs()
		if err != nil {
			return fmt.Errorf("processes of %s: %w", c.name, err)
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of %s survive: %w", len(pids), c.name, os.ErrDeadlineExceeded)
		}
		if err := c.signal(pids); err != nil {
			return err
		}
	}
}

// signal kills pids. A process is held by descriptor and then looked up again,
// so that an id that was reused in between hits nobody else.
func (c *Cgroup) signal(pids []int) error {
	held := make(map[int]int)
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			held[pid] = fd
		}
	}
	still, err := c.procs()
	if err != nil {
		return fmt.Errorf("processes of %s: %w", c.name, err)
	}
	for pid, fd := range held {
		if slices.Contains(still, pid) {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d of %s: %w", pid, c.name, err)
			}
		}
	}
	return nil
}

// Remove removes the cgroup, which must be empty. That it succeeds proves that
// no process is left in it. An absent one is no error.
func (c *Cgroup) Remove() error {
	var errs []error
	for _, tree := range c.trees {
		if err := removeCgroup(c.dir(tree)); err != nil {
			errs = append(errs, err)
			continue
		}
		// The last job takes the parent along; others keep it.
		_ = unix.Rmdir(filepath.Join(tree.mount, c.parent))
	}
	return errors.Join(errs...)
}

// removeCgroup tries again for a moment: the kernel may still be taking a dead
// process out.
func removeCgroup(dir string) error {
	for deadline := time.Now().Add(killTimeout); ; time.Sleep(killPause) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
}

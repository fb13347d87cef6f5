package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testParent keeps these tests apart from others that run at the same time.
var testParent = fmt.Sprintf("/underwrite-unit-test-%d", os.Getpid())

func testCgroup(t *testing.T, id string) *Cgroup {
	t.Helper()
	c, err := NewCgroup(testParent, id, 64<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Kill(), c.Remove()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// inCgroup starts a shell in the cgroup.
func inCgroup(t *testing.T, c *Cgroup, script string) *exec.Cmd {
	t.Helper()
	var join strings.Builder
	for _, dir := range c.Dirs() {
		join.WriteString("echo 0 > " + dir + "/cgroup.procs || exit 99; ")
	}
	cmd := exec.Command("/bin/sh", "-c", join.String()+script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

func TestCgroupKillAndRemove(t *testing.T) {
	c := testCgroup(t, "kill")
	cmd := inCgroup(t, c, "trap '' TERM INT; (setsid sleep 1000 &) ; sleep 1000 & sleep 1000")
	eventually(t, "four processes", func() bool { pids, _ := c.procs(); return len(pids) == 4 })
	if err := removeOnce(c); !errors.Is(err, unix.EBUSY) {
		t.Errorf("rmdir of a cgroup in use = %v", err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.String() != "signal: killed" {
		t.Errorf("shell ended with %v", err)
	}
	if pids, err := c.procs(); err != nil || len(pids) > 0 {
		t.Errorf("processes %v, %v", pids, err)
	}
	for range 2 { // also when it is gone
		if err := c.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range c.Dirs() {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func removeOnce(c *Cgroup) error { return unix.Rmdir(c.Dirs()[0]) }

func TestCgroupCounters(t *testing.T) {
	c := testCgroup(t, "counters")
	cmd := inCgroup(t, c, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	cpu, err := c.CPUTime()
	if err != nil || cpu <= 0 || cpu > time.Minute {
		t.Errorf("CPUTime = %v, %v", cpu, err)
	}
	if peak, err := c.MemoryPeak(); err != nil || peak <= 0 || peak > 64<<20 {
		t.Errorf("MemoryPeak = %d, %v", peak, err)
	}
	if kills, _, err := c.OOMKills(); err != nil || kills != 0 {
		t.Errorf("OOMKills = %d, %v", kills, err)
	}
}

func TestCgroupMemoryLimit(t *testing.T) {
	c := testCgroup(t, "memory")
	cmd := inCgroup(t, c, "exec python3 -c 'b = bytearray(256 << 20)'")
	if err := cmd.Wait(); err == nil {
		t.Error("256 MiB fit into 64 MiB")
	}
	kills, atLimit, err := c.OOMKills()
	if err != nil || kills == 0 || !atLimit {
		t.Errorf("OOMKills = %d, at limit %v, %v", kills, atLimit, err)
	}
}

// TestCgroupLimitsSet holds that swap has no room beside the memory limit and
// that the CPU quota is that of the processors asked for.
func TestCgroupLimitsSet(t *testing.T) {
	c, err := NewCgroup(testParent, "limits", 64<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Remove() })
	type setting struct {
		tree        hierarchy
		file, value string
	}
	settings := []setting{
		{c.memory, "memory.limit_in_bytes", "67108864"}, {c.memory, "memory.memsw.limit_in_bytes", "67108864"},
	}
	if c.memory.v2 {
		settings = []setting{{c.memory, "memory.max", "67108864"}, {c.memory, "memory.swap.max", "0"}, {c.memory, "memory.oom.group", "1"}}
	}
	if c.cpu.v2 {
		settings = append(settings, setting{c.cpu, "cpu.max", "300000 100000"})
	} else {
		settings = append(settings, setting{c.cpu, "cpu.cfs_quota_us", "300000"}, setting{c.cpu, "cpu.cfs_period_us", "100000"})
	}
	for _, s := range settings {
		got, err := os.ReadFile(filepath.Join(c.dir(s.tree), s.file))
		if strings.Contains(s.file, "sw") && errors.Is(err, os.ErrNotExist) {
			continue // no swap accounting: NewCgroup has checked that there is no swap
		}
		if err != nil || strings.TrimSpace(string(got)) != s.value {
			t.Errorf("%s = %q, %v, want %s", s.file, got, err, s.value)
		}
	}
}

// TestCgroupSameID holds that two owners may use one id: the name tells them apart.
func TestCgroupSameID(t *testing.T) {
	c := testCgroup(t, "same")
	if _, err := NewCgroup(testParent, "same", 64<<20, 1); !errors.Is(err, os.ErrExist) {
		t.Errorf("second cgroup of the same owner and id: %v, want ErrExist", err)
	}
	if err := c.Remove(); err != nil { // the failed attempt may have removed it already
		t.Error(err)
	}
}

func TestSweep(t *testing.T) {
	living := testCgroup(t, "living")
	dead := endedProcess(t)
	c := testCgroup(t, "dead")
	stale := &Cgroup{parent: testParent, name: "dead." + dead.String(), trees: c.trees}
	for _, tree := range stale.trees {
		if err := os.Mkdir(stale.dir(tree), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { stale.Kill(); stale.Remove() })
	cmd := inCgroup(t, stale, "sleep 1000")
	eventually(t, "the process joins", func() bool { pids, _ := stale.procs(); return len(pids) > 0 })
	foreign := filepath.Join(c.trees[0].mount, testParent, "someone-elses")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(foreign) })

	workspace := t.TempDir()
	if err := unix.Mount(workspacePrefix+dead.String(), workspace, "tmpfs", 0, "size=4096"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(workspace, unix.MNT_DETACH) })
	mine := mounted(t, 1<<20)

	removed, err := Sweep(testParent)
	if err != nil || !slices.Contains(removed, "cgroup "+stale.name) {
		t.Errorf("Sweep = %v, %v, want cgroup %s", removed, err, stale.name)
	}
	// Another process's sweep may have come first.
	if isMount(t, workspace) {
		t.Errorf("Sweep = %v, but %s is still mounted", removed, workspace)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the stale process was not killed")
	}
	for _, dir := range append(living.Dirs(), foreign) {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("Sweep removed what it must not: %v", err)
		}
	}
	if _, err := MeasureWorkspace(mine); err != nil || !isMount(t, mine) {
		t.Errorf("Sweep unmounted a living workspace: %v", err)
	}
}

// endedProcess is an owner that is no more.
func endedProcess(t *testing.T) owner {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := pidNamespace()
	if err != nil {
		t.Fatal(err)
	}
	o := owner{pid: cmd.Process.Pid, start: start, namespace: ns}
	if !o.alive() {
		t.Error("a running process counts as dead")
	}
	cmd.Process.Kill()
	eventually(t, "a zombie counts as dead", func() bool { return !o.alive() })
	cmd.Wait()
	if o.alive() {
		t.Error("a reaped process counts as alive")
	}
	return o
}

func TestOwner(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	if !me.alive() {
		t.Error("this process counts as dead")
	}
	if got, ok := parseOwner(me.String()); !ok || got != me {
		t.Errorf("parseOwner(%s) = %v, %v", me, got, ok)
	}
	reused := me
	reused.start--
	if reused.alive() {
		t.Error("another process with the same id counts as this one")
	}
	elsewhere := owner{pid: 1 << 30, start: 1, namespace: me.namespace + 1}
	if !elsewhere.alive() {
		t.Error("an owner in another pid namespace must count as alive")
	}
	for _, s := range []string{"", "1", "1-2", "1-2-3-4", "1-2-3 ", " 1-2-3", "01-2-3", "+1-2-3", "a-b-c", "1-2--3"} {
		if _, ok := parseOwner(s); ok {
			t.Errorf("parseOwner accepts %q", s)
		}
	}
}

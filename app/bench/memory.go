package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"underwrite/app/stage"
	"underwrite/runner/wire"
)

// settle is how long idle processes run before they are looked at.
const settle = 3 * time.Second

// memory prints the peak resident memory (VmHWM) of each process. Most of it is
// the one binary, whose pages all of them share.
func memory(ctx context.Context, s *site, dir string) error {
	fmt.Println("peak resident memory, MiB (of it private)")
	if err := idle(ctx, s.binary, dir); err != nil {
		return err
	}
	cmd, err := s.prepare(ctx, "small", sleepJob)
	if err != nil {
		return err
	}
	peaks := map[string]resident{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	_, err = s.finish(cmd, func(phase string, pid int) {
		if phase == wire.PhaseRun {
			go func() { defer close(stopped); sample(pid, peaks, stop) }()
		}
	})
	close(stop)
	if err != nil {
		return err
	}
	<-stopped
	for _, name := range slices.Sorted(maps.Keys(peaks)) {
		peaks[name].print(name)
	}
	own := peaks["execute"]
	own.add(peaks["runsc-underwrite-job"])
	own.print("execution's own: execute and supervisor")
	return nil
}

// idle starts gateway and controller with nothing to do.
func idle(ctx context.Context, binary, dir string) (err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	st, err := stage.New(ctx, stage.Options{
		Self: binary, Dir: dir, Accounts: []string{"octo-org"}, Checks: []stage.Check{{Name: "tests", Profile: idleProfile}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if err := st.Start(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, p := range []struct {
		name string
		pid  int
	}{{"controller, idle", st.Controller.PID()}, {"gateway, idle", st.Gateway.PID()}} {
		r, err := residentOf(p.pid)
		if err != nil {
			return err
		}
		r.print(p.name)
	}
	return nil
}

const idleProfile = `{argv: [/usr/bin/true], root: host, cpus: 1, limits: {wallSeconds: 20, cpuSeconds: 20, memoryBytes: 268435456, processes: 16, workspaceBytes: 67108864, outputBytes: 4096}}`

// resident is a process's memory in kibibytes.
type resident struct{ peak, private int64 }

func (r *resident) add(other resident) { r.peak += other.peak; r.private += other.private }

func (r resident) print(name string) {
	fmt.Printf("  %-40s %6.1f  (%.1f)\n", name, float64(r.peak)/1024, float64(r.private)/1024)
}

func residentOf(pid int) (r resident, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmHWM":
			r.peak = n
		case "RssAnon":
			r.private = n
		}
	}
	if r.peak == 0 {
		return r, fmt.Errorf("process %d has no memory any more", pid)
	}
	return r, nil
}

// sample keeps the highest values of an execution and of everything that it
// started, by their names, until stop.
func sample(pid int, peaks map[string]resident, stop <-chan struct{}) {
	for {
		for _, p := range append(descendants(pid), pid) {
			name := nameOf(p)
			if r, err := residentOf(p); err == nil && name != "" {
				had := peaks[name]
				peaks[name] = resident{max(had.peak, r.peak), max(had.private, r.private)}
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nameOf is the name under which one of our processes was started; the guest's
// own stubs have none of these.
func nameOf(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := bytes.Split(b, []byte{0})
	switch {
	case strings.HasPrefix(string(args[0]), "runsc-"):
		return string(args[0])
	case len(args) > 1 && string(args[1]) == "execute":
		return "execute"
	}
	return ""
}

func descendants(pid int) []int {
	var all []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

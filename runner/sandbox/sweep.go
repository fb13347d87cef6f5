package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Sweep ends and removes what jobs of dead processes left on this host: their
// processes, cgroups below parent and workspace mounts. It returns what it
// removed, one line each. Jobs of living processes are left alone, and so is
// what another pid namespace owns. Every gateway and execution calls it at
// start. A job's other traces need no sweep: they live in namespaces that end
// with its supervisor, which ends with the process that called Run.
func Sweep(parent string) (removed []string, err error) {
	cgroups, err1 := sweepCgroups(parent)
	mounts, err2 := sweepWorkspaces()
	return append(cgroups, mounts...), errors.Join(err1, err2)
}

func sweepCgroups(parent string) (removed []string, err error) {
	h, err := hostHierarchies()
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, tree := range h.distinct() {
		entries, err := os.ReadDir(filepath.Join(tree.mount, parent))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("sweep cgroups: %w", err)
		}
		for _, e := range entries {
			if _, id, ok := cutLast(e.Name(), "."); ok && e.IsDir() {
				if o, ok := parseOwner(id); ok && !o.alive() {
					names[e.Name()] = true
				}
			}
		}
	}
	var errs []error
	for name := range names {
		c := &Cgroup{parent: parent, name: name, trees: h.distinct()}
		if err := c.Kill(); err != nil {
			errs = append(errs, err)
		} else if err := c.Remove(); err != nil {
			errs = append(errs, err)
		} else {
			removed = append(removed, "cgroup "+name)
		}
	}
	return removed, errors.Join(errs...)
}

func sweepWorkspaces() (removed []string, err error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("sweep workspaces: %w", err)
	}
	var errs []error
	for line := range strings.Lines(string(mountinfo)) {
		m, ok := parseMount(line)
		if !ok || !staleWorkspace(m) {
			continue
		}
		if err := UnmountWorkspace(m.point); err != nil {
			errs = append(errs, err)
		} else {
			removed = append(removed, "workspace "+m.point)
		}
	}
	return removed, errors.Join(errs...)
}

// staleWorkspace reports whether m is a workspace whose owner is dead.
func staleWorkspace(m mount) bool {
	id, ok := strings.CutPrefix(m.source, workspacePrefix)
	if !ok || m.fstype != "tmpfs" {
		return false
	}
	o, ok := parseOwner(id)
	return ok && !o.alive()
}

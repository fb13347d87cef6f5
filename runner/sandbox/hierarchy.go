package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoController means that the kernel offers no cgroup controller that a
// limit needs. The message names it and the remedy.
var ErrNoController = errors.New("cgroup controller missing")

// A hierarchy is one mounted cgroup tree.
type hierarchy struct {
	mount string // where it is mounted
	v2    bool
}

// hierarchies says which tree serves each controller that jobs need. On a
// hybrid host each controller lives in one of them.
type hierarchies struct {
	memory, cpu, cpuacct hierarchy
}

// hostHierarchies finds the controllers of this host.
func hostHierarchies() (hierarchies, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return hierarchies{}, fmt.Errorf("cgroup mounts: %w", err)
	}
	v1, v2 := cgroupMounts(string(mountinfo))
	var unified []string
	if v2 != "" {
		controllers, err := os.ReadFile(filepath.Join(v2, "cgroup.controllers"))
		if err != nil {
			return hierarchies{}, fmt.Errorf("cgroup controllers: %w", err)
		}
		unified = strings.Fields(string(controllers))
	}
	return chooseHierarchies(v1, v2, unified)
}

// cgroupMounts parses mountinfo (proc(5)): the first mount point of each
// version 1 controller, and of version 2. Only mounts of a whole tree count.
func cgroupMounts(mountinfo string) (v1 map[string]string, v2 string) {
	v1 = make(map[string]string)
	for line := range strings.Lines(mountinfo) {
		m, ok := parseMount(line)
		switch {
		case !ok:
		case m.fstype == "cgroup2" && v2 == "":
			v2 = m.point
		case m.fstype == "cgroup":
			for _, option := range strings.Split(m.super, ",") {
				if v1[option] == "" {
					v1[option] = m.point
				}
			}
		}
	}
	return v1, v2
}

// A mount is what matters of one line of mountinfo.
type mount struct {
	point, fstype, source, super string
}

func parseMount(line string) (mount, bool) {
	before, after, ok := strings.Cut(line, " - ")
	fields, rest := strings.Fields(before), strings.Fields(after)
	if !ok || len(fields) < 6 || len(rest) < 3 {
		return mount{}, false
	}
	return mount{point: unescapeMount(fields[4]), fstype: rest[0], source: unescapeMount(rest[1]), super: rest[2]}, true
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// chooseHierarchies prefers version 2 where it has the controller. Version 2
// accounts CPU time in every cgroup, without a controller.
func chooseHierarchies(v1 map[string]string, v2 string, unified []string) (hierarchies, error) {
	var missing []string
	choose := func(controller, inV2 string) hierarchy {
		switch {
		case slices.Contains(unified, inV2):
			return hierarchy{v2, true}
		case v1[controller] != "":
			return hierarchy{v1[controller], false}
		}
		missing = append(missing, controller)
		return hierarchy{}
	}
	h := hierarchies{memory: choose("memory", "memory"), cpu: choose("cpu", "cpu"), cpuacct: choose("cpuacct", "cpu")}
	if slices.Equal(missing, []string{"cpuacct"}) && v2 != "" {
		h.cpuacct, missing = hierarchy{v2, true}, nil
	}
	if len(missing) > 0 {
		return h, fmt.Errorf("%w: %s: boot with cgroup_enable=%s, or mount /sys/fs/cgroup and delegate the controllers to this unit or container",
			ErrNoController, strings.Join(missing, ", "), missing[0])
	}
	return h, nil
}

// distinct lists the trees without repetition: a job has one cgroup in each.
func (h hierarchies) distinct() []hierarchy {
	var all []hierarchy
	for _, one := range []hierarchy{h.memory, h.cpu, h.cpuacct} {
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}

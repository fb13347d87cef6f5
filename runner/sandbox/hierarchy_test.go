package sandbox

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

const (
	mountsV1 = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:32 / /elsewhere/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
`
	mountsV2     = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountsHybrid = mountsV1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)

func TestCgroupMounts(t *testing.T) {
	v1, v2 := cgroupMounts(mountsHybrid + "malformed line\n7 7 - x\n")
	want := map[string]string{
		"rw": "/sys/fs/cgroup/cpu,cpuacct", "cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
		"memory": "/sys/fs/cgroup/memory", "name=systemd": "/sys/fs/cgroup/systemd",
	}
	if !maps.Equal(v1, want) || v2 != "/sys/fs/cgroup/unified" {
		t.Errorf("cgroupMounts = %v, %q", v1, v2)
	}
	if m, ok := parseMount(`1 2 0:3 / /with\040blank rw - tmpfs a\011b rw`); !ok || m.point != "/with blank" || m.source != "a\tb" {
		t.Errorf("parseMount = %+v, %v", m, ok)
	}
}

func TestChooseHierarchies(t *testing.T) {
	v1 := func(at string) hierarchy { return hierarchy{at, false} }
	v2 := func(at string) hierarchy { return hierarchy{at, true} }
	tests := []struct {
		name     string
		mounts   string
		unified  string
		want     hierarchies
		distinct int
		missing  string
	}{
		{"version 1", mountsV1, "", hierarchies{v1("/sys/fs/cgroup/memory"), v1("/sys/fs/cgroup/cpu,cpuacct"), v1("/sys/fs/cgroup/cpu,cpuacct")}, 2, ""},
		{"version 2", mountsV2, "cpuset cpu io memory pids", hierarchies{v2("/sys/fs/cgroup"), v2("/sys/fs/cgroup"), v2("/sys/fs/cgroup")}, 1, ""},
		{"empty unified mount", mountsHybrid, "", hierarchies{v1("/sys/fs/cgroup/memory"), v1("/sys/fs/cgroup/cpu,cpuacct"), v1("/sys/fs/cgroup/cpu,cpuacct")}, 2, ""},
		{"memory in version 2", mountsHybrid, "memory", hierarchies{v2("/sys/fs/cgroup/unified"), v1("/sys/fs/cgroup/cpu,cpuacct"), v1("/sys/fs/cgroup/cpu,cpuacct")}, 2, ""},
		{"cpu time without a controller", strings.ReplaceAll(mountsHybrid, ",cpuacct\n", "\n"), "", hierarchies{v1("/sys/fs/cgroup/memory"), v1("/sys/fs/cgroup/cpu,cpuacct"), v2("/sys/fs/cgroup/unified")}, 3, ""},
		{"nothing mounted", "", "", hierarchies{}, 0, "memory, cpu, cpuacct"},
		{"no memory", mountsV2, "cpu pids", hierarchies{}, 0, "memory"},
		{"not delegated", mountsV2, "", hierarchies{}, 0, "memory, cpu"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m1, m2 := cgroupMounts(tt.mounts)
			got, err := chooseHierarchies(m1, m2, strings.Fields(tt.unified))
			if tt.missing != "" {
				if !errors.Is(err, ErrNoController) || !strings.Contains(err.Error(), tt.missing) {
					t.Errorf("error = %v, want %q missing", err, tt.missing)
				}
				return
			}
			if err != nil || got != tt.want || len(got.distinct()) != tt.distinct {
				t.Errorf("chooseHierarchies = %+v (%d trees), %v", got, len(got.distinct()), err)
			}
		})
	}
}

func TestParseCounter(t *testing.T) {
	tests := []struct {
		text, key string
		want      int64
		ok        bool
	}{
		{"42\n", "", 42, true},
		{"low 0\noom 1\noom_kill 7\noom_group_kill 2\n", "oom_kill", 7, true},
		{"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill", 3, true},
		{"usage_usec 5\nuser_usec 4\n", "usage_usec", 5, true},
		{"usage_usec 5\n", "user_usec", 0, false},
		{"max\n", "", 0, false},
		{"oom_kill -\n", "oom_kill", 0, false},
		{"", "", 0, false},
		{"99999999999999999999\n", "", 0, false},
	}
	for _, tt := range tests {
		if got, ok := parseCounter(tt.text, tt.key); ok != tt.ok || ok && got != tt.want {
			t.Errorf("parseCounter(%q, %q) = %d, %v", tt.text, tt.key, got, ok)
		}
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add(mountsHybrid)
	f.Add("1 2 3 4 5 6 - a b c")
	f.Fuzz(func(t *testing.T, s string) {
		v1, v2 := cgroupMounts(s)
		if len(v1) > 0 && !strings.Contains(s, "cgroup") || v2 != "" && !strings.Contains(s, "cgroup2") {
			t.Errorf("mounts out of nothing: %v, %q", v1, v2)
		}
	})
}

package gvisor

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"underwrite/runner/image"
	"underwrite/runner/sandbox"
)

// bareName is argv[0] of a process that runs /usr/bin/true in gVisor, on the
// host's root as a job sees it, with nothing of ours around it: no supervisor,
// no cgroup, no limit. Its time from start to exit is the anchor of app/bench.
// Its argument is an empty directory that everyone can enter.
const bareName = "bare-gvisor"

// bareMain does it if this process was started so, and never returns then.
func bareMain() {
	if os.Args[0] != bareName {
		return
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	if err := bare(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "bare gVisor:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func bare(dir string) error {
	view := sandbox.View{
		Root: filepath.Join(dir, "root"), Usr: "/usr", Workspace: filepath.Join(dir, "workspace"),
		Executable: "/usr/bin/true", GuestExecutable: "/usr/bin/true", MemoryBytes: 256 << 20,
	}
	for _, d := range []string{view.Root, view.Workspace, filepath.Join(dir, "state")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if _, err := image.Host(view.Root); err != nil {
		return err
	}
	spec := sandbox.GuestSpec(view)
	spec.Process.Args = []string{"/usr/bin/true"}
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644); err != nil {
		return err
	}
	conf, err := bareConfig(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	status, err := container.Run(conf, container.Args{ID: "bare", Spec: spec, BundleDir: dir, Attached: true})
	if err == nil && status != 0 {
		err = fmt.Errorf("wait status %d", status)
	}
	return err
}

// bareConfig has the flags of a job, but for where gVisor keeps its state.
func bareConfig(state string) (*config.Config, error) {
	set := flag.NewFlagSet("runsc", flag.ContinueOnError)
	config.RegisterFlags(set)
	if err := set.Parse(append(flags[2:len(flags):len(flags)], "--root="+state)); err != nil {
		return nil, err
	}
	return config.NewFromFlags(set)
}

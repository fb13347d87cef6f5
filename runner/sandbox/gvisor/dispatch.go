package gvisor

import (
	"os"
	"slices"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/specutils"
)

// supervisorName is argv[0] of the process that serves one job. gVisor names
// the processes that it starts runsc-sandbox, runsc-gofer and the like.
const supervisorName = "runsc-underwrite-job"

// MaybeExec turns this process into one of the sandbox's own processes if it
// was started as one, and never returns then. main, and TestMain of a package
// that links this one, call it before anything else, even before flags: the
// processes have no environment and see almost no file system. That holds for
// the initialization of packages too, which comes before: none may need a file.
func MaybeExec() {
	switch {
	case os.Args[0] == supervisorName:
		supervise()
	case isGVisor(os.Args):
		cli.Run(nil, commands(), nil)
	default:
		return
	}
	os.Exit(1) // both end by themselves
}

// commands are the subcommands that gVisor starts this binary with.
func commands() map[util.SubCommand]string {
	return map[util.SubCommand]string{
		new(sentrycmd.Boot): "internal", new(cmd.Gofer): "internal", new(sentrycmd.Umount): "internal",
	}
}

// isGVisor reports whether gVisor has started this process. When it changes
// its capabilities it runs itself under the plain name of its path, which
// others may do too: then the subcommand decides.
func isGVisor(args []string) bool {
	switch name := args[0]; {
	case strings.HasPrefix(name, "runsc-"), strings.HasPrefix(name, "runsc["):
		return true
	case name == specutils.ExePath:
		return slices.ContainsFunc(args[1:], func(arg string) bool {
			for c := range commands() {
				if arg == c.Name() {
					return true
				}
			}
			return false
		})
	}
	return false
}

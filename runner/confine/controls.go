package confine

import (
	"context"
	"fmt"
)

// Identity says under which kernel identity a tool runs.
type Identity string

// The identities, strongest first.
const (
	ThrowAwayUID  Identity = "throw-away uid"          // root, and the file systems support id-mapped mounts
	UserNamespace Identity = "user namespace"          // the caller's uid, without any right outside the namespace
	CallerUID     Identity = "the caller's uid itself" // user namespaces are forbidden here: Landlock and seccomp alone
)

// Controls says what held for one run: which of the layers this kernel and
// this caller could put up.
type Controls struct {
	Identity    Identity
	Mounts      bool // own root with nothing but the given directories in it
	PIDs        bool // own process namespace: the kernel itself ends what the tool leaves
	NetworkNS   bool // own network namespace without any interface up
	Seccomp     bool // sockets other than AF_UNIX, io_uring, bpf, keyrings, new namespaces refused
	LandlockABI int  // 0: not in force
}

// Check runs a trivial tool confined and says what held. It fails where Run
// would fail.
func Check(ctx context.Context) (Controls, error) {
	c, err := runReported(ctx, Spec{Argv: []string{"true"}})
	if err != nil {
		return Controls{}, fmt.Errorf("confinement does not work here: %w", err)
	}
	return c, nil
}

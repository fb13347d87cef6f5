package freeze

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"underwrite/runner/confine"
)

func TestMain(m *testing.M) {
	confine.MaybeExec()
	if order := os.Getenv("FREEZE_CHILD"); order != "" {
		freezeChild(order)
	}
	os.Exit(m.Run())
}

// childOrder is a freeze in a process of its own, for a test to kill. The
// child is its own GitHub.
type childOrder struct {
	Pull                   PullRequest
	URL, MirrorDir, OutDir string
}

func (o childOrder) PullRequest(context.Context, string, int64) (PullRequest, error) {
	return o.Pull, nil
}

func (o childOrder) FetchAccess(context.Context, string) (string, string, error) {
	return o.URL, testAuth, nil
}

func freezeChild(order string) {
	var o childOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	f := &Freezer{MirrorDir: o.MirrorDir, GitHub: o}
	_, err := f.Freeze(context.Background(), o.Pull.Repo, o.Pull.Number, o.OutDir)
	fmt.Println("freeze ended:", err)
	os.Exit(1)
}

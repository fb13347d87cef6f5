package freeze

import (
	"os"
	"testing"

	"underwrite/runner/confine"
)

func TestMain(m *testing.M) {
	confine.MaybeExec()
	os.Exit(m.Run())
}

package image

import (
	"errors"

	"underwrite/runner/sandbox"
)

// HostDigest is the digest of the host's own root file system: it names no
// content, so receipts say that the run was not pinned to an image.
const HostDigest = "host"

// Host builds in dir, an existing empty directory, what a guest sees as its
// root when it runs on the host's programs: links for a merged /usr, the
// linker's cache, the alternatives, and generated account files. The host's
// /usr is bound over it read-only; nothing else of the host is visible.
// The caller removes dir after the run.
func Host(dir string) (sandbox.Root, error) {
	return sandbox.Root{}, errors.New("image: not built yet")
}

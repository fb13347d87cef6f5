package runner

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/runner/internal/hostpath"
	"underwrite/store/blob"
)

const (
	maxProgramCache = 1 << 10 // bytes
	// settled is how long a file must have been left alone before its digest is
	// remembered: a change within the resolution of the file system's clock
	// would not show in its times. The coarsest resolution is two seconds.
	settled = 3 * time.Second
)

// stamp is what changes when a file does: writing to it sets its change time,
// which nobody can set back without the right to set the clock.
type stamp struct {
	Device, Inode     uint64
	Bytes             int64
	Modified, Changed int64 // nanoseconds since 1970
}

// remembered is the content of the cache file.
type remembered struct {
	stamp
	SHA256 string
}

var errProgramChanged = errors.New("the file changed while it was read")

// programDigest returns the SHA-256 of an open program. Reading it takes
// longer than anything else before a job is accepted, so the digest is
// remembered for the very file, unchanged, in the cache. The cache lies in the
// state directory beside the ledger: who can write there could forge more than
// the name of an executor. A cache that is missing, damaged or not writable
// costs time only. Controllers trust executors by `underwrite gateway profile`,
// which does not use it.
func programDigest(f *os.File, cache string, now func() time.Time) (string, error) {
	before, err := stampOf(f)
	if err != nil {
		return "", err
	}
	if r, ok := recall(cache); ok && r.stamp == before {
		return r.SHA256, nil
	}
	sum, _, err := hashAll(f)
	if err != nil {
		return "", err
	}
	after, err := stampOf(f)
	if err != nil {
		return "", err
	}
	if after != before {
		return "", errProgramChanged
	}
	if cache != "" && now().Sub(time.Unix(0, before.Changed)) > settled {
		if b, err := json.Marshal(remembered{before, sum}); err == nil {
			_ = blob.WriteFile(cache, b, 0o600) // the next execution tries again
		}
	}
	return sum, nil
}

func stampOf(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return stamp{Device: st.Dev, Inode: st.Ino, Bytes: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}, nil
}

func recall(cache string) (r remembered, ok bool) {
	if cache == "" {
		return r, false
	}
	b, err := hostpath.ReadFile(cache, maxProgramCache)
	if err != nil || json.Unmarshal(b, &r) != nil {
		return r, false
	}
	return r, len(r.SHA256) == 64
}

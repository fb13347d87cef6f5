package freeze

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"underwrite/runner/confine"
)

const (
	fetchTimeout = 10 * time.Minute
	checkTimeout = 10 * time.Minute

	// maxPacks is how many fetches, each with a pack of its own, pass between
	// two repacks: lookups get slower with each pack.
	maxPacks = 50

	// packSlack is how much larger than the largest accepted bundle a fetched
	// pack may be: GitHub packs the same objects in its own way.
	packSlack = 2

	// maxMirror is how many of the largest accepted bundles a mirror may take on
	// the disk. A larger one holds what pull requests have pushed and replaced,
	// and is built anew.
	maxMirror = 8

	// keptPulls is how many pull requests a mirror remembers the last commits
	// of. They are what a fetch is incremental to; the pull requests share them
	// by their numbers, so that a mirror's refs stay few.
	keptPulls = 256
)

// mirror is the bare repository that keeps the fetches of one GitHub
// repository incremental.
//
// Two locks beside it order its users. A freeze holds "use" shared from before
// its fetch until its files are written; whoever deletes objects (repack,
// rebuild) holds it exclusively. Within that, a fetch holds "fetch"
// exclusively: it is the only writer, so lock files and temporary packs found
// under that lock were left by a git that was killed. The file "fetching"
// exists during a fetch: when it is found afterwards, the fetch did not end and
// the mirror is checked before it is used again.
type mirror struct {
	dir  string
	base string // path of the files beside it, without their endings
}

// openMirror returns the mirror of a repository with a valid name. GitHub's
// names do not differ by case alone.
func openMirror(below, repo string) (*mirror, error) {
	if err := os.MkdirAll(below, 0o700); err != nil {
		return nil, fmt.Errorf("mirror directory: %w", err)
	}
	below, err := realPath("mirror directory", below)
	if err != nil {
		return nil, err
	}
	// A + is in no name: this is unambiguous, and never "." or "..".
	base := filepath.Join(below, strings.ReplaceAll(strings.ToLower(repo), "/", "+"))
	return &mirror{dir: base + ".git", base: base}, nil
}

func (m *mirror) objects() string { return filepath.Join(m.dir, "objects") }

// acquire returns the shared lock of a user, after the mirror was repaired if
// a crash made that necessary. unlock frees it.
func (m *mirror) acquire(ctx context.Context, maxBundle int64) (*fileLock, error) {
	if err := m.maintain(ctx, maxBundle); err != nil {
		return nil, err
	}
	return lockFile(ctx, m.base+".use.lock", false)
}

// maintain checks a mirror whose last fetch did not end, packs one that has
// many packs and deletes one that is too large. While others use it that waits
// for a later freeze.
func (m *mirror) maintain(ctx context.Context, maxBundle int64) error {
	l, err := tryLock(m.base+".use.lock", true)
	if err != nil || l == nil {
		return err
	}
	defer l.unlock()
	if _, err := os.Lstat(m.base + ".fetching"); err == nil {
		if err := m.repairLocked(ctx, false); err != nil {
			return err
		}
	}
	packs, bytes, err := m.packs()
	if err != nil {
		return err
	}
	if bytes > maxMirror*maxBundle {
		return m.delete()
	}
	if packs <= maxPacks {
		return nil
	}
	if err := m.reset(); err != nil {
		return err
	}
	return m.rebuildIfBroken(m.git(ctx, nil, "repack", "-a", "-d", "-q"))
}

func (m *mirror) packs() (count int, bytes int64, err error) {
	packs, err := filepath.Glob(filepath.Join(m.objects(), "pack", "*.pack"))
	if err != nil {
		return 0, 0, fmt.Errorf("mirror: %w", err)
	}
	for _, p := range packs {
		info, err := os.Stat(p)
		if err != nil {
			return 0, 0, fmt.Errorf("mirror: %w", err)
		}
		bytes += info.Size()
	}
	return len(packs), bytes, nil
}

func (m *mirror) delete() error {
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("delete the mirror: %w", err)
	}
	return nil
}

// repair finds out whether the mirror is to blame for a failure, and deletes
// it then: the next fetch builds it anew. full means to verify the content of
// all objects, not only that they are there.
func (m *mirror) repair(ctx context.Context, full bool) (rebuilt bool, err error) {
	l, err := lockFile(ctx, m.base+".use.lock", true)
	if err != nil {
		return false, err
	}
	defer l.unlock()
	if err := m.repairLocked(ctx, full); err != nil {
		return false, err
	}
	_, err = os.Lstat(m.dir)
	return errors.Is(err, fs.ErrNotExist), nil
}

func (m *mirror) repairLocked(ctx context.Context, full bool) error {
	if err := m.reset(); err != nil {
		return err
	}
	if err := m.rebuildIfBroken(m.check(ctx, full)); err != nil {
		return err
	}
	return m.unmark()
}

// check looks for everything that the kept refs reach.
func (m *mirror) check(ctx context.Context, full bool) error {
	if err := m.git(ctx, nil, "rev-list", "--objects", "--all", "--quiet"); err != nil || !full {
		return err
	}
	packs, err := filepath.Glob(filepath.Join(m.objects(), "pack", "*.idx"))
	if err != nil || len(packs) == 0 {
		return err
	}
	return m.git(ctx, nil, append([]string{"verify-pack"}, packs...)...)
}

// rebuildIfBroken deletes the mirror when git says that it is broken. Any
// other error is returned.
func (m *mirror) rebuildIfBroken(err error) error {
	var exit *confine.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	return m.delete()
}

// mirrorEntries are what a mirror consists of.
var mirrorEntries = []string{"HEAD", "config", "objects", "packed-refs", "refs"}

// reset makes the mirror's own files what they must be, and removes whatever
// else stands there: hooks, attributes, grafts, alternates, lock files and
// half-written packs. The caller holds the lock under which no git writes.
func (m *mirror) reset() error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	for _, e := range entries {
		if slices.Contains(mirrorEntries, e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.dir, e.Name())); err != nil {
			return fmt.Errorf("mirror: %w", err)
		}
	}
	if err := m.sweep(); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	return layOut(m.dir)
}

// sweep removes what a killed git leaves below refs and objects.
func (m *mirror) sweep() error {
	return filepath.WalkDir(m.dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		rel, name := strings.TrimPrefix(p, m.dir+"/"), d.Name()
		stale := !d.IsDir() && (strings.HasSuffix(name, ".lock") || strings.HasPrefix(name, "tmp_"))
		if stale || rel == "objects/info/alternates" || rel == "objects/info/http-alternates" {
			return os.Remove(p)
		}
		return nil
	})
}

// git runs a command that changes the mirror or needs all of it.
func (m *mirror) git(ctx context.Context, out *bytes.Buffer, args ...string) error {
	spec := confine.Git(m.dir, args...)
	if out != nil {
		spec.Stdout = out
	}
	spec.MaxStdout, spec.Timeout = maxShortAnswer, checkTimeout
	if err := confine.Run(ctx, spec); err != nil {
		return fmt.Errorf("mirror: git %s: %w", args[0], err)
	}
	return nil
}

package freeze

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"underwrite/runner/confine"
	"underwrite/runner/quarantine"
)

// Names of the two frozen commits, in the scratch repository and in the bundle.
const (
	baseRef = quarantine.BaseRef
	headRef = quarantine.HeadRef
)

// readTimeout bounds each process that only reads objects: the slowest, a
// bundle of the largest accepted size, takes well under a minute.
const readTimeout = 5 * time.Minute

// gitConfig is the whole configuration of a mirror and of a scratch
// repository, written again before each use: nothing in them that a process
// may have changed is believed. core.fsync makes a fetched pack durable before
// a ref names it.
const gitConfig = `[core]
	repositoryFormatVersion = 0
	bare = true
	fsync = all
	fsyncMethod = fsync
	commitGraph = false
	logAllRefUpdates = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	hooksPath = /dev/null
	fsmonitor = false
	quotePath = true
[fetch]
	unpackLimit = 1
	writeCommitGraph = false
	recurseSubmodules = false
[gc]
	auto = 0
[maintenance]
	auto = false
[protocol]
	version = 2
[http]
	followRedirects = false
	lowSpeedLimit = 1000
	lowSpeedTime = 60
`

// realPath returns the absolute path without symbolic links: what a confined
// process sees has no others.
func realPath(what, path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return abs, nil
}

// layOut writes the files that make dir a bare repository without any commit:
// HEAD names a branch that never exists, so that nothing is read from a
// default branch (attributes, for one).
func layOut(dir string) error {
	for _, d := range []string{"objects/info", "objects/pack", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return fmt.Errorf("lay out repository: %w", err)
		}
	}
	for name, content := range map[string]string{"config": gitConfig, "HEAD": "ref: refs/heads/none\n"} {
		if _, err := publish(dir, name, func(w io.Writer) error {
			_, err := io.WriteString(w, content)
			return err
		}); err != nil {
			return fmt.Errorf("lay out repository: %w", err)
		}
	}
	return nil
}

// scratch is a repository of one freeze: it has exactly the two refs and no
// objects of its own, and its processes only read. So freezes of the same
// mirror share objects and nothing else, and of a local repository nothing but
// objects is looked at: no configuration, hook, attribute, graft or replacement.
type scratch struct {
	dir     string
	objects []string // directories that the alternates lead to
}

// newScratch makes a scratch repository at dir that borrows the objects of
// objects[0]; the others are where that one's own alternates lead.
func newScratch(dir string, objects []string, refs map[string]string) (*scratch, error) {
	if strings.ContainsAny(objects[0], "\n\"") {
		return nil, fmt.Errorf("object directory %q: its name cannot be written into an alternates file", objects[0])
	}
	if err := layOut(dir); err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	for name, commit := range refs {
		fmt.Fprintf(&packed, "%s %s\n", commit, name)
	}
	files := map[string]string{
		"objects/info/alternates": objects[0] + "\n",
		"packed-refs":             packed.String(),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, fmt.Errorf("lay out scratch repository: %w", err)
		}
	}
	return &scratch{dir: dir, objects: objects}, nil
}

// remove deletes the repository. What a crash leaves of it lies in the
// caller's output directory and goes with that.
func (s *scratch) remove() error { return os.RemoveAll(s.dir) }

// git runs a reading command with its standard output, at most maximum bytes,
// going to out.
func (s *scratch) git(ctx context.Context, out io.Writer, maximum int64, in io.Reader, args ...string) error {
	spec := confine.Git(s.dir, args...)
	spec.ReadWrite = nil
	spec.ReadOnly = append([]string{s.dir}, s.objects...)
	spec.Stdin, spec.Stdout, spec.MaxStdout = in, out, maximum
	spec.Timeout = readTimeout
	if err := confine.Run(ctx, spec); err != nil {
		return fmt.Errorf("git %s: %w", args[0], err)
	}
	return nil
}

// text runs a command with a short answer.
func (s *scratch) text(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := s.git(ctx, &out, maxShortAnswer, nil, args...)
	return out.String(), err
}

const maxShortAnswer = 1 << 20 // bytes

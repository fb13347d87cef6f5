package freeze

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"underwrite/runner/confine"
)

// Bounds of what is read of a local repository.
const (
	maxRefFile    = 64 << 20 // bytes of packed-refs, the largest of these files
	maxRefs       = 200_000  // loose refs
	maxAlternates = 5        // levels, as git itself allows
)

// Local freezes two revisions of a local repository as if they were the pull
// request number of repo ("local/NAME" for a repository without a remote): an
// open one without a head repository, whose head branch has the name of the
// revision head. repoDir is the top of a work tree or a bare repository.
//
// The repository is only read, and only its refs and objects are: revisions
// are resolved on a copy of the refs, everything else happens in a repository
// that borrows the objects. So revisions that need a reflog or configuration
// ("@{1}", "@{upstream}") are unknown here. It returns a *RefusedError, or an
// error of the machine. After an error outDir is to be deleted.
func Local(ctx context.Context, repoDir, base, head, repo string, number int64, outDir string, l Limits) (*Frozen, error) {
	outDir, err := realPath("output directory", outDir)
	if err != nil {
		return nil, err
	}
	if err := checkOutDir(outDir); err != nil {
		return nil, err
	}
	local, err := openLocal(repoDir)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(outDir, scratchName)
	pr := PullRequest{Repo: repo, Number: number, State: "open", HeadRef: head}
	if pr.BaseSHA, pr.HeadSHA, err = local.resolve(ctx, dir, base, head); err != nil {
		return nil, err
	}
	if !repoShape.MatchString(repo) {
		return nil, fmt.Errorf("repository %q: want OWNER/NAME", repo)
	}
	if err := checkMetadata(pr, repo, number); err != nil {
		return nil, err
	}
	s, err := newScratch(dir, local.objects, map[string]string{baseRef: pr.BaseSHA, headRef: pr.HeadSHA})
	if err != nil {
		return nil, err
	}
	z := &freezing{repo: s, outDir: outDir, limits: l.orDefaults(), target: newTarget(pr)}
	frozen, err := z.run(ctx)
	if err = errors.Join(err, s.remove()); err != nil {
		return nil, err
	}
	return frozen, nil
}

// localRepository is a repository of the user.
type localRepository struct {
	gitDir    string   // holds HEAD
	commonDir string   // holds refs and objects; another one for a linked work tree
	objects   []string // the object directory, then where its alternates lead
}

// openLocal finds the parts of the repository at dir and refuses those that do
// not have all objects or that version 1 cannot name.
func openLocal(dir string) (*localRepository, error) {
	gitDir, err := findGitDir(dir)
	if err != nil {
		return nil, err
	}
	r := &localRepository{gitDir: gitDir, commonDir: gitDir}
	common, err := readSmall(filepath.Join(gitDir, "commondir"))
	if err == nil {
		r.commonDir, err = realPath("local repository", resolve(gitDir, strings.TrimRight(string(common), "\n")))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("local repository: %w", err)
	}
	if err := r.refuseUnsupported(); err != nil {
		return nil, err
	}
	top, err := realPath("local repository", filepath.Join(r.commonDir, "objects"))
	if err != nil {
		return nil, err
	}
	if r.objects, err = withAlternates(nil, top, 0); err != nil {
		return nil, err
	}
	return r, nil
}

// resolve returns path as it is meant in dir.
func resolve(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// findGitDir takes dir for a work tree, whose .git is a directory or a file
// that names it, or for a bare repository.
func findGitDir(dir string) (string, error) {
	dir, err := realPath("local repository", dir)
	if err != nil {
		return "", err
	}
	dotGit := filepath.Join(dir, ".git")
	info, err := os.Stat(dotGit)
	switch {
	case err == nil && info.IsDir():
		return realPath("local repository", dotGit)
	case err == nil:
		content, err := readSmall(dotGit)
		if err != nil {
			return "", fmt.Errorf("local repository: %w", err)
		}
		name, ok := strings.CutPrefix(strings.TrimRight(string(content), "\n"), "gitdir: ")
		if !ok {
			return "", fmt.Errorf("local repository: %s does not name a git directory", dotGit)
		}
		return realPath("local repository", resolve(dir, name))
	}
	for _, name := range []string{"HEAD", "objects"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("%s is neither the top of a git work tree nor a bare repository", dir)
		}
	}
	return dir, nil
}

// otherFormat finds in a configuration file that objects or refs are not
// stored the way that is read here.
var otherFormat = regexp.MustCompile(`(?im)^\s*(objectformat\s*=\s*"?sha256|refstorage\s*=\s*"?reftable)`)

func (r *localRepository) refuseUnsupported() error {
	config, err := readSmall(filepath.Join(r.commonDir, "config"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("local repository: %w", err)
	}
	if otherFormat.Match(config) {
		return &RefusedError{Reason: "the local repository does not have SHA-1 objects and file refs; convert a clone of it"}
	}
	shallow, err := readSmall(filepath.Join(r.commonDir, "shallow"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("local repository: %w", err)
	}
	if len(shallow) > 0 {
		return &RefusedError{Reason: "the local repository is a shallow clone; run git fetch --unshallow"}
	}
	promises, err := filepath.Glob(filepath.Join(r.commonDir, "objects", "pack", "*.promisor"))
	if err != nil {
		return fmt.Errorf("local repository: %w", err)
	}
	if len(promises) > 0 {
		return &RefusedError{Reason: "the local repository is a partial clone; use a complete one"}
	}
	return nil
}

// withAlternates appends dir and the object directories that it borrows from.
func withAlternates(found []string, dir string, level int) ([]string, error) {
	if level > maxAlternates {
		return nil, &RefusedError{Reason: "the local repository borrows objects over too many levels", Path: dir}
	}
	found = append(found, dir)
	content, err := readSmall(filepath.Join(dir, "info", "alternates"))
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	} else if err != nil {
		return nil, fmt.Errorf("local repository: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		next, err := realPath("local repository, alternate object directory", resolve(dir, line))
		if err != nil {
			return nil, err
		}
		if found, err = withAlternates(found, next, level+1); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// resolve finds the commits of two revisions on a copy of the refs at dir,
// which it removes again.
func (r *localRepository) resolve(ctx context.Context, dir, base, head string) (baseSHA, headSHA string, err error) {
	s, err := newScratch(dir, r.objects, nil)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, s.remove()) }()
	if err := r.copyRefs(dir); err != nil {
		return "", "", fmt.Errorf("local repository: %w", err)
	}
	if baseSHA, err = s.commit(ctx, base); err != nil {
		return "", "", err
	}
	headSHA, err = s.commit(ctx, head)
	return baseSHA, headSHA, err
}

func (s *scratch) commit(ctx context.Context, revision string) (string, error) {
	if revision == "" || strings.ContainsRune(revision, 0) {
		return "", &RefusedError{Reason: "empty revision"}
	}
	out, err := s.text(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}")
	var exit *confine.ExitError
	if errors.As(err, &exit) && (exit.Code == 1 || exit.Stderr == "") {
		return "", &RefusedError{Reason: "no commit of the local repository", Path: revision}
	} else if err != nil {
		return "", err
	}
	out = strings.TrimSuffix(out, "\n")
	if !shaShape.MatchString(out) {
		return "", &RefusedError{Reason: "not one commit of the local repository", Path: revision}
	}
	return out, nil
}

// copyRefs copies HEAD, packed-refs and the loose refs.
func (r *localRepository) copyRefs(dir string) error {
	if err := copySmall(filepath.Join(r.gitDir, "HEAD"), filepath.Join(dir, "HEAD")); err != nil {
		return err
	}
	err := copySmall(filepath.Join(r.commonDir, "packed-refs"), filepath.Join(dir, "packed-refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	count := 0
	return filepath.WalkDir(filepath.Join(r.commonDir, "refs"), func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // git removes empty directories
			return nil
		} else if err != nil {
			return err
		}
		rel, err := filepath.Rel(r.commonDir, p)
		if err != nil {
			return err
		}
		if count++; count > maxRefs {
			return fmt.Errorf("more than %d loose refs; run git pack-refs --all", maxRefs)
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, rel), 0o700)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		err = copySmall(p, filepath.Join(dir, rel))
		if errors.Is(err, fs.ErrNotExist) { // packed meanwhile, and packed-refs was read before
			return fmt.Errorf("ref %s changed while it was read; try again", rel)
		}
		return err
	})
}

func copySmall(from, to string) error {
	content, err := readSmall(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// readSmall reads a regular file of at most maxRefFile bytes.
func readSmall(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(f, maxRefFile+1)); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if b.Len() > maxRefFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxRefFile)
	}
	return b.Bytes(), nil
}

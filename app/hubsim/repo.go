package hubsim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// gitTimeout bounds one git process of the hub's own.
const gitTimeout = time.Minute

// The identity and the first date of all commits: the same calls in the same
// order make the same object names.
const (
	commitName  = "Octo Author"
	commitEmail = "author@example.com"
	commitEpoch = 1767225600 // 2026-01-01T00:00:00Z
)

// Change is one change of a commit to one path.
type Change struct {
	Path   string
	Data   string // content, or the target of a symbolic link
	Mode   string // "100644" if empty, "100755" or "120000"
	Delete bool
}

// File writes a file.
func File(path, content string) Change { return Change{Path: path, Data: content} }

// Script writes an executable file.
func Script(path, content string) Change {
	return Change{Path: path, Data: content, Mode: "100755"}
}

// Symlink makes a symbolic link.
func Symlink(path, target string) Change {
	return Change{Path: path, Data: target, Mode: "120000"}
}

// Remove removes a file or a whole directory.
func Remove(path string) Change { return Change{Path: path, Delete: true} }

// gitDir is the path of a bare repository.
type gitDir string

// gitEnv is the whole environment of every git process: nothing of the
// caller's configuration, identity or credentials gets in.
func gitEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "TZ=UTC",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_TERMINAL_PROMPT=0",
		"GIT_ATTR_NOSYSTEM=1", "GIT_NO_REPLACE_OBJECTS=1",
		"GIT_AUTHOR_NAME=" + commitName, "GIT_AUTHOR_EMAIL=" + commitEmail,
		"GIT_COMMITTER_NAME=" + commitName, "GIT_COMMITTER_EMAIL=" + commitEmail,
	}
}

// git runs git on the repository and returns its standard output.
func (g gitDir) git(stdin io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"--git-dir=" + string(g)}, args...)...)
	cmd.Env = gitEnv()
	cmd.Dir = "/"
	cmd.Stdin = stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// line is git for commands that print one line.
func (g gitDir) line(args ...string) (string, error) {
	out, err := g.git(nil, args...)
	return strings.TrimSuffix(out, "\n"), err
}

// initRepo makes an empty bare repository that serves fetches as GitHub does:
// any object by its name, nothing to push to.
func initRepo(g gitDir, branch string) error {
	if _, err := g.git(nil, "init", "--quiet", "--bare", "--template=", "--initial-branch="+branch, string(g)); err != nil {
		return err
	}
	for _, kv := range [][2]string{
		{"uploadpack.allowAnySHA1InWant", "true"}, {"uploadpack.allowFilter", "true"},
		{"http.receivepack", "false"}, {"gc.auto", "0"}, {"core.logAllRefUpdates", "false"},
	} {
		if _, err := g.git(nil, "config", kv[0], kv[1]); err != nil {
			return err
		}
	}
	return nil
}

// copyRefs copies refs and their objects from another repository.
func (g gitDir) copyRefs(from gitDir, refspecs ...string) error {
	args := append([]string{
		"-c", "protocol.file.allow=always", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head",
		string(from),
	}, refspecs...)
	_, err := g.git(nil, args...)
	return err
}

// tip is the commit of a branch, "" if there is no such branch.
func (g gitDir) tip(branch string) (string, error) { return g.commitAt("refs/heads/" + branch) }

// commitAt is the commit that a full ref name leads to, "" if none.
func (g gitDir) commitAt(ref string) (string, error) {
	out, err := g.line("for-each-ref", "--format=%(refname) %(objecttype) %(objectname) %(*objectname)", ref)
	if err != nil {
		return "", err
	}
	for l := range strings.Lines(out) {
		f := strings.Fields(l)
		if f[0] == ref && f[1] == "tag" && len(f) == 4 {
			return f[3], nil
		}
		if f[0] == ref {
			return f[2], nil
		}
	}
	return "", nil
}

// hasCommit tells whether sha, in full, names a commit of the repository.
func (g gitDir) hasCommit(sha string) bool {
	if !isSHA(sha) {
		return false
	}
	kind, err := g.line("cat-file", "-t", sha)
	return err == nil && kind == "commit"
}

func isSHA(s string) bool {
	return len(s) == 40 && strings.Trim(s, "0123456789abcdef") == ""
}

// commit puts one commit on top of parent ("" for a first one) and moves the
// branch to it.
func (g gitDir) commit(branch, parent, message string, when int64, changes []Change) (string, error) {
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/%s\nmark :1\n", branch)
	fmt.Fprintf(&in, "author %s <%s> %d +0000\n", commitName, commitEmail, when)
	fmt.Fprintf(&in, "committer %s <%s> %d +0000\n", commitName, commitEmail, when)
	writeData(&in, message)
	if parent != "" {
		fmt.Fprintf(&in, "from %s\n", parent)
	}
	for _, c := range changes {
		if c.Delete {
			fmt.Fprintf(&in, "D %s\n", quotePath(c.Path))
			continue
		}
		fmt.Fprintf(&in, "M %s inline %s\n", modeOr(c.Mode), quotePath(c.Path))
		writeData(&in, c.Data)
	}
	if _, err := g.git(&in, "fast-import", "--quiet", "--force"); err != nil {
		return "", err
	}
	return g.tip(branch)
}

func writeData(w io.Writer, s string) { fmt.Fprintf(w, "data %d\n%s\n", len(s), s) }

func modeOr(mode string) string {
	if mode == "" {
		return "100644"
	}
	return mode
}

// quotePath quotes a path in the way of git's C-style quoting.
func quotePath(p string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(p) {
		if c := p[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// mergeCommit merges head into base and returns the merge commit; no ref moves.
func (g gitDir) mergeCommit(base, head, message string, when int64) (string, error) {
	tree, err := g.line("merge-tree", "--write-tree", base, head)
	if err != nil {
		return "", err
	}
	raw := fmt.Sprintf("tree %s\nparent %s\nparent %s\nauthor %[4]s <%[5]s> %[6]d +0000\ncommitter %[4]s <%[5]s> %[6]d +0000\n\n%[7]s\n",
		tree, base, head, commitName, commitEmail, when, message)
	out, err := g.git(strings.NewReader(raw), "hash-object", "-t", "commit", "-w", "--stdin")
	return strings.TrimSpace(out), err
}

// commitInfo is what the API tells about a commit.
type commitInfo struct {
	sha, tree      string
	parents        []string
	name, email    string // of the author
	date           string // of the author, RFC 3339
	cname, cemail  string
	cdate, message string
}

// log reads commits: what `git log` says to the given arguments.
func (g gitDir) log(args ...string) ([]commitInfo, error) {
	format := "--format=%H%x00%T%x00%P%x00%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI%x00%B%x00"
	out, err := g.git(nil, append([]string{"log", "-z", format}, args...)...)
	if err != nil {
		return nil, err
	}
	const fields = 10
	parts := strings.Split(out, "\x00")
	var list []commitInfo
	// Each record is its fields and an empty one, which the separator of -z ends.
	for len(parts) > fields {
		f := parts[:fields]
		list = append(list, commitInfo{
			sha: f[0], tree: f[1], parents: strings.Fields(f[2]), name: f[3], email: f[4], date: f[5],
			cname: f[6], cemail: f[7], cdate: f[8], message: strings.TrimSuffix(f[9], "\n"),
		})
		parts = parts[fields:]
		if len(parts) > 0 && parts[0] == "" {
			parts = parts[1:]
		}
	}
	return list, nil
}

// fileChange is a changed file between two trees.
type fileChange struct {
	path, oldPath string
	status        string // as the API names it
	blob          string // new blob; the old one of a removed file
	added         int
	deleted       int
}

var statusNames = map[byte]string{'A': "added", 'D': "removed", 'M': "modified", 'R': "renamed", 'C': "copied", 'T': "changed"}

// diff lists the files that differ between two commits, renames found.
func (g gitDir) diff(from, to string) ([]fileChange, error) {
	raw, err := g.git(nil, "diff", "-z", "--raw", "--no-abbrev", "--find-renames=50%", from, to, "--")
	if err != nil {
		return nil, err
	}
	stat, err := g.git(nil, "diff", "-z", "--numstat", "--find-renames=50%", from, to, "--")
	if err != nil {
		return nil, err
	}
	files, err := parseRaw(raw)
	if err != nil {
		return nil, err
	}
	return files, addCounts(files, stat)
}

// parseRaw reads `git diff --raw -z`: ":MODE MODE SHA SHA STATUS\0PATH\0", with
// a second path for renames and copies.
func parseRaw(raw string) ([]fileChange, error) {
	parts := strings.Split(strings.TrimSuffix(raw, "\x00"), "\x00")
	var files []fileChange
	for len(parts) > 1 {
		f := strings.Fields(parts[0])
		if len(f) != 5 {
			return nil, fmt.Errorf("git diff: unexpected record %q", parts[0])
		}
		c := fileChange{path: parts[1], blob: f[3], status: statusNames[f[4][0]]}
		parts = parts[2:]
		if c.status == "removed" {
			c.blob = f[2]
		}
		if c.status == "renamed" || c.status == "copied" {
			c.oldPath, c.path = c.path, parts[0]
			parts = parts[1:]
		}
		files = append(files, c)
	}
	return files, nil
}

// addCounts reads `git diff --numstat -z`: "ADDED\tDELETED\tPATH\0", or for a
// rename "ADDED\tDELETED\t\0OLD\0NEW\0". Binary files count "-".
func addCounts(files []fileChange, stat string) error {
	parts := strings.Split(strings.TrimSuffix(stat, "\x00"), "\x00")
	for i := range files {
		if len(parts) == 0 {
			return fmt.Errorf("git diff: no line counts for %q", files[i].path)
		}
		f := strings.SplitN(parts[0], "\t", 3)
		if len(f) != 3 {
			return fmt.Errorf("git diff: unexpected line counts %q", parts[0])
		}
		files[i].added, _ = strconv.Atoi(f[0]) // "-" counts nothing
		files[i].deleted, _ = strconv.Atoi(f[1])
		parts = parts[1:]
		if f[2] == "" {
			parts = parts[2:]
		}
	}
	return nil
}

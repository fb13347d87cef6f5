package gittree

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"underwrite/attest/attesttest"
)

// made is one entry of a vector's directory.
type made struct {
	Type    string `json:"type"`
	Path    string `json:"path_base64"`
	Mode    string `json:"mode"`
	Content []byte `json:"content_base64"`
	Target  []byte `json:"target_base64"`
	LinkTo  string `json:"link_to_base64"`
}

func TestGitTreeVectors(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root: some vectors make files that their owner cannot read")
		}
		t.Skip("needs root: some vectors make files that their owner cannot read")
	}
	attesttest.Run(t, "git_tree", func(t *testing.T, c attesttest.Case) {
		var most int64
		c.Decode(t, "maximum_bytes", &most)
		tree, _, err := Measure(context.Background(), makeRoot(t, c), DefaultLimits(most))
		if !c.Accept {
			if err == nil {
				t.Errorf("accepted as %s", tree)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		want := c.Text(t, "git_tree")
		if tree != want {
			t.Errorf("tree %s, want %s", tree, want)
		}
		// The pure parts give the same, without a file system.
		if id, err := RootID(files(t, c)); err != nil || id.String() != want {
			t.Errorf("from paths %s, %v; want %s", id, err, want)
		}
	})
}

// files are the files and links of a vector that is accepted.
func files(t *testing.T, c attesttest.Case) (files []File) {
	t.Helper()
	var entries []made
	c.Decode(t, "entries", &entries)
	for _, e := range entries {
		f := File{Path: string(attesttest.Base64(t, e.Path)), Mode: ModeFile}
		content := e.Content
		switch e.Type {
		case "dir":
			continue
		case "symlink":
			f.Mode, content = ModeLink, e.Target
		case "file":
			mode, err := strconv.ParseUint(e.Mode, 8, 32)
			must(t, err)
			if mode&0o111 != 0 {
				f.Mode = ModeExecutable
			}
		default:
			t.Fatalf("unknown entry type %q", e.Type)
		}
		id, err := BlobID(int64(len(content)), bytes.NewReader(content))
		must(t, err)
		f.ID = id
		files = append(files, f)
	}
	return files
}

func makeRoot(t *testing.T, c attesttest.Case) string {
	t.Helper()
	parent := t.TempDir()
	dir, root := filepath.Join(parent, "dir"), filepath.Join(parent, "root")
	var entries []made
	c.Decode(t, "entries", &entries)
	switch c.Text(t, "root") {
	case "dir":
		root = dir
	case "symlink":
		must(t, os.Symlink("dir", root))
	case "file":
		must(t, os.WriteFile(root, nil, 0o644))
	case "missing":
	default:
		t.Fatalf("unknown root %q", c.Text(t, "root"))
	}
	must(t, os.Mkdir(dir, 0o755))
	fd, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	must(t, err)
	defer unix.Close(fd)
	for _, e := range entries {
		e.create(t, fd)
	}
	return root
}

// create works relative to descriptors, because whole paths exceed PATH_MAX.
func (e made) create(t *testing.T, root int) {
	t.Helper()
	dir, name := parentOf(t, root, attesttest.Base64(t, e.Path))
	defer unix.Close(dir)
	switch e.Type {
	case "file":
		mode, err := strconv.ParseUint(e.Mode, 8, 32)
		must(t, err)
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
		must(t, err)
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		_, err = f.Write(e.Content)
		must(t, err)
		must(t, unix.Fchmod(fd, uint32(mode)))
	case "dir":
		must(t, unix.Mkdirat(dir, name, 0o755))
	case "symlink":
		must(t, unix.Symlinkat(string(e.Target), dir, name))
	case "hardlink":
		from, old := parentOf(t, root, attesttest.Base64(t, e.LinkTo))
		defer unix.Close(from)
		must(t, unix.Linkat(from, old, dir, name, 0))
	case "fifo":
		must(t, unix.Mkfifoat(dir, name, 0o644))
	case "socket":
		l, err := net.Listen("unix", "/proc/self/fd/"+strconv.Itoa(dir)+"/"+name)
		must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		must(t, l.Close())
	default:
		t.Fatalf("unknown entry type %q", e.Type)
	}
}

// parentOf makes and opens the directory of a path below root.
func parentOf(t *testing.T, root int, path []byte) (dir int, name string) {
	t.Helper()
	components := bytes.Split(path, []byte("/"))
	dir, err := unix.Dup(root)
	must(t, err)
	for _, c := range components[:len(components)-1] {
		if err := unix.Mkdirat(dir, string(c), 0o755); err != nil && err != unix.EEXIST {
			t.Fatal(err)
		}
		next, err := unix.Openat(dir, string(c), unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		must(t, err)
		unix.Close(dir)
		dir = next
	}
	return dir, string(components[len(components)-1])
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

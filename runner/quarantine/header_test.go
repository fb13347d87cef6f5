package quarantine

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
)

const (
	idA = "a6f2f540fa8bebed917dcd50dc3a408541f8879d"
	idB = "d45f5c480aa9d4058699f7d3bc18cc36369b6de1"
)

func TestParseHeader(t *testing.T) {
	tests := []struct {
		name, text string
		refs       int // -1: refused
	}{
		{"v2", "# v2 git bundle\n" + idA + " " + BaseRef + "\n" + idB + " " + HeadRef + "\n\nPACK", 2},
		{"v3", "# v3 git bundle\n@object-format=sha1\n" + idA + " " + HeadRef + "\n\nPACK", 1},
		{"no refs", "# v2 git bundle\n\n", 0},
		{"empty", "", -1},
		{"no end", "# v2 git bundle\n" + idA + " " + HeadRef + "\n", -1},
		{"v3 without capability", "# v3 git bundle\n" + idA + " " + HeadRef + "\n\n", -1},
		{"filter", "# v3 git bundle\n@filter=blob:none\n\n", -1},
		{"filter after the format", "# v3 git bundle\n@object-format=sha1\n@filter=blob:none\n\n", -1},
		{"prerequisite", "# v2 git bundle\n-" + idA + " message\n" + idB + " " + HeadRef + "\n\n", -1},
		{"duplicate", "# v2 git bundle\n" + idA + " " + HeadRef + "\n" + idB + " " + HeadRef + "\n\n", -1},
		{"upper case id", "# v2 git bundle\n" + strings.ToUpper(idA) + " " + HeadRef + "\n\n", -1},
		{"two spaces", "# v2 git bundle\n" + idA + "  " + HeadRef + "\n\n", -1},
		{"trailing space", "# v2 git bundle\n" + idA + " " + HeadRef + " \n\n", -1},
		{"CR", "# v2 git bundle\r\n" + idA + " " + HeadRef + "\r\n\r\n", -1},
		{"NUL in a name", "# v2 git bundle\n" + idA + " refs/a\x00b\n\n", -1},
		{"dots in a name", "# v2 git bundle\n" + idA + " refs/../x\n\n", -1},
		{"HEAD", "# v2 git bundle\n" + idA + " HEAD\n\n", -1},
		{"long line", "# v2 git bundle\n" + idA + " refs/" + strings.Repeat("a", maxHeader) + "\n\n", -1},
		{"no newline ever", strings.Repeat("a", 1<<20), -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, err := ParseHeader(bufio.NewReader(strings.NewReader(tt.text)))
			if tt.refs < 0 {
				mustRefuse(t, err)
				return
			}
			if err != nil || len(h.Refs) != tt.refs {
				t.Fatalf("header = %+v, %v, want %d refs", h, err, tt.refs)
			}
		})
	}
}

// FuzzParseHeader: what parses is exactly what Encode writes, and the reader
// stands right behind it.
func FuzzParseHeader(f *testing.F) {
	f.Add([]byte("# v2 git bundle\n" + idA + " " + BaseRef + "\n" + idB + " " + HeadRef + "\n\nPACK"))
	f.Add([]byte("# v3 git bundle\n@object-format=sha256\n" + idA + idA[:24] + " " + OutputRef + "\n\n"))
	f.Add([]byte("# v3 git bundle\n@object-format=sha1\n-" + idA + "\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		h, err := ParseHeader(r)
		if err != nil {
			return
		}
		encoded := h.Encode()
		if !bytes.HasPrefix(data, encoded) || len(encoded) > maxHeader {
			t.Fatalf("parsed %q as %+v, which is written %q", data, h, encoded)
		}
		if rest, _ := io.ReadAll(r); !bytes.Equal(rest, data[len(encoded):]) {
			t.Fatalf("rest = %q, want %q", rest, data[len(encoded):])
		}
	})
}

// FuzzParseTree: what parses is canonical, so its order is strict and writing
// it again gives the same bytes in the SHA-256 format.
func FuzzParseTree(f *testing.F) {
	id := strings.Repeat("\x01", 32)
	f.Add([]byte("100644 a\x00" + id + "40000 b\x00" + id))
	f.Add([]byte("0100644 a\x00" + id))
	f.Add([]byte("100644 a\x00" + id[:20]))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseTree(data, SHA256, 100, "")
		if err != nil {
			mustRefuse(t, err)
			return
		}
		if len(entries) > 100 {
			t.Fatalf("%d entries", len(entries))
		}
		var again []byte
		for _, e := range entries {
			again = append(again, encodeItem(e)...)
		}
		if !bytes.Equal(again, data) {
			t.Fatalf("parsed %q, which is written %q", data, again)
		}
	})
}

func TestLooksLikeGit(t *testing.T) {
	for name, want := range map[string]bool{
		".git": true, ".GIT": true, ".gIt": true, "git~1": true, "GIT~1": true, ".git.": true, ".git ": true, ".git . .": true,
		".g\u200cit": true, "\ufeff.git": true, ".git\u206f": true, `.git\config`: true, `a\.git`: true, `a\git~1\b`: true,
		".git::$INDEX_ALLOCATION": true, ".git:x": true, "git~1.": true,
		"git": false, ".gitignore": false, ".gitmodules": false, "git~2": false, ".git~1": false, "..git": false,
		"a.git": false, ".g\u200dx": false, "\xff.git": false, "...": false, ".git-": false,
	} {
		if got := looksLikeGit(name); got != want {
			t.Errorf("looksLikeGit(%q) = %t, want %t", name, got, want)
		}
	}
}

func TestPrintable(t *testing.T) {
	got := printable("error: a\nfatal: \x1b[31mb\xff " + strings.Repeat("ä", 1000))
	if strings.ContainsAny(got, "\n\x1b\uFFFD") || len(got) > maxShown+len(" …") {
		t.Errorf("printable = %q", got)
	}
}

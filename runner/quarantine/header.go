package quarantine

import (
	"bufio"
	"errors"
	"io"
	"strings"
)

// Format is a Git object format.
type Format string

// The object formats: sources are SHA-1, outputs SHA-256.
const (
	SHA1   Format = "sha1"
	SHA256 Format = "sha256"
)

// hexLength is the length of an object id in hexadecimal digits.
func (f Format) hexLength() int {
	if f == SHA256 {
		return 64
	}
	return 40
}

// maxHeader bounds a bundle's header in bytes: a signature, a capability and
// two refs are far shorter.
const maxHeader = 4096

// Header is the beginning of a bundle without prerequisites. The pack follows
// it at once.
type Header struct {
	Version int
	Format  Format
	Refs    []Ref // in the bundle's order, no name twice
}

// Ref is one tip of a bundle.
type Ref struct {
	Object string // lower-case hexadecimal digits
	Name   string // below refs/
}

// errHeader is refused input: the reasons are for people.
func errHeader(reason string) error { return &RefusedError{Reason: "bundle header: " + reason} }

// ParseHeader reads a bundle's header strictly: version 2, or version 3 with
// exactly the object-format capability; no prerequisites, filters or other
// capabilities, no comments, and well-formed refs below refs/. It returns a
// *RefusedError, or the reader's error.
func ParseHeader(r *bufio.Reader) (Header, error) {
	p := headerReader{r: r}
	h := Header{Format: SHA1}
	switch line, err := p.line(); {
	case err != nil:
		return Header{}, err
	case line == "# v2 git bundle":
		h.Version = 2
	case line == "# v3 git bundle":
		h.Version = 3
		if h.Format, err = p.format(); err != nil {
			return Header{}, err
		}
	default:
		return Header{}, errHeader("unsupported signature")
	}
	for {
		line, err := p.line()
		if err != nil {
			return Header{}, err
		}
		if line == "" {
			return h, nil
		}
		if err := h.add(line); err != nil {
			return Header{}, err
		}
	}
}

type headerReader struct {
	r    *bufio.Reader
	read int
}

// line returns the next line without its newline.
func (p *headerReader) line() (string, error) {
	var line []byte
	for {
		c, err := p.r.ReadByte()
		if errors.Is(err, io.EOF) {
			return "", errHeader("incomplete")
		}
		if err != nil {
			return "", err
		}
		if p.read++; p.read > maxHeader {
			return "", errHeader("too long")
		}
		if c == '\n' {
			return string(line), nil
		}
		line = append(line, c)
	}
}

func (p *headerReader) format() (Format, error) {
	line, err := p.line()
	if err != nil {
		return "", err
	}
	switch line {
	case "@object-format=sha1":
		return SHA1, nil
	case "@object-format=sha256":
		return SHA256, nil
	}
	return "", errHeader("unsupported capabilities")
}

func (h *Header) add(line string) error {
	if strings.HasPrefix(line, "@") {
		return errHeader("unsupported capabilities")
	}
	if strings.HasPrefix(line, "-") {
		return errHeader("prerequisites are not allowed")
	}
	object, name, ok := strings.Cut(line, " ")
	if !ok || !isObjectID(object, h.Format) || !isRefName(name) {
		return errHeader("malformed ref")
	}
	for _, r := range h.Refs {
		if r.Name == name {
			return errHeader("duplicate ref")
		}
	}
	h.Refs = append(h.Refs, Ref{Object: object, Name: name})
	return nil
}

func isObjectID(s string, f Format) bool {
	return len(s) == f.hexLength() && strings.Trim(s, "0123456789abcdef") == ""
}

// isRefName is stricter than Git: only the names of this protocol's shape.
func isRefName(s string) bool {
	rest, ok := strings.CutPrefix(s, "refs/")
	if !ok {
		return false
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			return false
		}
	}
	return true
}

// exactly requires the header to have these refs and no other, and returns
// their objects.
func (h *Header) exactly(f Format, names ...string) ([]string, error) {
	if h.Format != f {
		return nil, errHeader("object format is " + string(h.Format) + ", not " + string(f))
	}
	objects := make([]string, len(names))
	for i, name := range names {
		for _, r := range h.Refs {
			if r.Name == name {
				objects[i] = r.Object
			}
		}
		if objects[i] == "" {
			return nil, errHeader("ref " + name + " is missing")
		}
	}
	if len(h.Refs) != len(names) {
		return nil, errHeader("unexpected refs")
	}
	return objects, nil
}

// Encode returns the header's bytes: what ParseHeader read, exactly.
func (h *Header) Encode() []byte {
	var b strings.Builder
	if h.Version == 2 {
		b.WriteString("# v2 git bundle\n")
	} else {
		b.WriteString("# v3 git bundle\n@object-format=" + string(h.Format) + "\n")
	}
	for _, r := range h.Refs {
		b.WriteString(r.Object + " " + r.Name + "\n")
	}
	b.WriteByte('\n')
	return []byte(b.String())
}

package local

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"underwrite/runner/policy"
	"underwrite/store/blob"
)

// Ceilings bound every profile of the local commands, as a gateway's own
// configuration does elsewhere.
var Ceilings = policy.Limits{
	WallSeconds:    3600,
	CPUSeconds:     4 * 3600,
	MemoryBytes:    16 << 30,
	Processes:      policy.MaxProcesses,
	WorkspaceBytes: 8 << 30,
	OutputBytes:    64 << 20,
}

// ExampleProfile is a commented profile that works as it stands: its job is
// /bin/true.
//
//go:embed profile.yml
var ExampleProfile []byte

// Stdin as a path names the standard input.
const Stdin = "-"

// LoadProfile reads and checks the profile file at path, or that on stdin if
// path is Stdin. Errors name the file, the line, the field and the fix.
func LoadProfile(path string, stdin io.Reader) (*policy.ProfileFile, error) {
	name, text, err := readInput(path, stdin, policy.MaxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return policy.ParseProfile(name, text, Ceilings)
}

// InitProfile writes ExampleProfile to a new file.
func InitProfile(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("profile: %s exists: name another file or remove it", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("profile: %w", err)
	}
	if err := blob.WriteFile(path, ExampleProfile, 0o644); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// readInput reads a file, or stdin, of at most limit bytes and says what to
// call it in messages.
func readInput(path string, stdin io.Reader, limit int64) (name string, text []byte, err error) {
	name = path
	r := stdin
	if path == Stdin {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return name, nil, err
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return name, nil, fmt.Errorf("%s is a directory: name a file", path)
		}
		r = f
	}
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, limit+1))
	if err != nil {
		return name, nil, fmt.Errorf("read %s: %w", name, err)
	}
	if n > limit {
		return name, nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return name, b.Bytes(), nil
}

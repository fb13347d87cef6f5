package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"underwrite/runner/internal/hostpath"
	"underwrite/runner/wire"
)

// trashPrefix begins the name of evidence that is being removed.
const trashPrefix = ".underwrite-consumed-"

var evidenceName = regexp.MustCompile(`^[0-9a-f]{64}$`)

var errNotEvidence = errors.New("not an evidence directory of this gateway")

// acknowledge removes evidence that its consumer has stored durably. The
// result itself stays in the gateway's state: a replay publishes it again.
func (s *server) acknowledge(conn net.Conn, dir string) error {
	name := filepath.Base(dir)
	if filepath.Dir(dir) != s.config.Outbox || !evidenceName.MatchString(name) {
		return fmt.Errorf("%w: %q", errNotEvidence, dir)
	}
	outbox, err := hostpath.OpenDir(s.config.Outbox)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	defer outbox.Close()
	at := int(outbox.Fd())
	for _, n := range []string{trashPrefix + name, name} {
		if err := removeEvidence(at, n); err != nil {
			return err
		}
	}
	if err := outbox.Sync(); err != nil {
		return fmt.Errorf("remove evidence: %w", err)
	}
	s.Log.Info().Str("evidence", name).Msg("evidence acknowledged and removed")
	s.reply(conn, wire.Reply{Acknowledged: true})
	return nil
}

// removeEvidence removes a directory with evidence files and nothing else.
// Under its other name, nobody takes what is half removed for evidence.
func removeEvidence(at int, name string) error {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %q: %v", errNotEvidence, name, err)
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("remove evidence: %w", err)
	}
	for _, n := range names {
		if !slices.Contains(wire.EvidenceFiles, n) {
			return fmt.Errorf("%w: it holds %q", errNotEvidence, n)
		}
	}
	if !strings.HasPrefix(name, trashPrefix) {
		if err := unix.Renameat2(at, name, at, trashPrefix+name, unix.RENAME_NOREPLACE); err != nil {
			return fmt.Errorf("remove evidence: %w", err)
		}
		name = trashPrefix + name
	}
	for _, n := range names {
		if err := unix.Unlinkat(fd, n, 0); err != nil {
			return fmt.Errorf("remove evidence: %w", err)
		}
	}
	return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}

// removeTrash finishes removals that were interrupted.
func removeTrash(outboxPath string) error {
	outbox, err := hostpath.OpenDir(outboxPath)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	defer outbox.Close()
	names, err := outbox.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for _, n := range names {
		if strings.HasPrefix(n, trashPrefix) {
			if err := removeEvidence(int(outbox.Fd()), n); err != nil {
				return err
			}
		}
	}
	return nil
}

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds on what a Spec may ask for. A gateway's policy is tighter.
const (
	MaxProcesses = 4096         // tasks: each costs the runtime several threads of the host
	MaxSeconds   = 24 * 60 * 60 // of wall and of CPU time
	MaxCPUs      = 1024
)

// OverheadBytes is about what the sandbox itself takes of a job's memory
// limit. A sensible limit is above that, the workspace's bytes and the job's
// own need together.
const OverheadBytes = 48 << 20

// ErrSpec means that a Spec cannot be run as it is: the caller's or the
// configuration's fault, found before anything was started.
var ErrSpec = errors.New("cannot run this job")

// ErrNotExecuted means that the sandbox stood but the job's executable could
// not be executed in it, for example for want of its interpreter.
var ErrNotExecuted = errors.New("the guest cannot execute the job")

var validID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Validate checks everything about a Spec that can be known before it runs.
// Its errors wrap ErrSpec.
func (s *Spec) Validate() error {
	checks := []func() error{s.checkValues, s.checkPaths, s.checkWorkspace, s.checkExecutable}
	for _, check := range checks {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", ErrSpec, err)
		}
	}
	return nil
}

func (s *Spec) checkValues() error {
	l := s.Limits
	switch {
	case !validID.MatchString(s.ID):
		return fmt.Errorf("id %q is not of the form [a-z0-9-]{1,64}", s.ID)
	case l.WallSeconds <= 0 || l.CPUSeconds <= 0 || l.MemoryBytes <= 0 || l.Processes <= 0 || l.WorkspaceBytes <= 0 || l.OutputBytes <= 0:
		return errors.New("every limit must be positive")
	case l.Processes > MaxProcesses:
		return fmt.Errorf("limit of %d processes: at most %d", l.Processes, MaxProcesses)
	case l.WallSeconds > MaxSeconds || l.CPUSeconds > MaxSeconds:
		return fmt.Errorf("limits of %d s wall and %d s CPU time: at most %d", l.WallSeconds, l.CPUSeconds, MaxSeconds)
	case s.CPUs < 1 || s.CPUs > MaxCPUs:
		return fmt.Errorf("%d CPUs: 1 to %d", s.CPUs, MaxCPUs)
	case s.Stdout == nil || s.Stderr == nil || s.BeforeLaunch == nil:
		return errors.New("one of Stdout, Stderr and BeforeLaunch is not set")
	case len(s.Job.Argv) == 0 || s.Job.Argv[0] != s.Job.Executable.Path:
		return errors.New("argv[0] is not the executable's path")
	}
	return s.checkStrings()
}

// checkStrings refuses what execve cannot take or JSON would change.
func (s *Spec) checkStrings() error {
	all := append([]string{s.Job.Cwd}, s.Job.Argv...)
	for name, value := range s.Job.Environment {
		if name == "" || strings.Contains(name, "=") {
			return fmt.Errorf("environment name %q", name)
		}
		all = append(all, name, value)
	}
	for _, str := range all {
		if strings.ContainsRune(str, 0) || !utf8.ValidString(str) {
			return fmt.Errorf("%q contains NUL or is not UTF-8", str)
		}
	}
	return nil
}

func (s *Spec) checkPaths() error {
	for _, p := range []string{s.StateDir, s.RootFS.Path, s.Workspace, s.Executable} {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p {
			return fmt.Errorf("path %q is not absolute and clean", p)
		}
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return err
		}
		if real != p {
			return fmt.Errorf("path %s has a symbolic link in it", p)
		}
	}
	entries, err := os.ReadDir(s.StateDir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("state directory %s is not empty", s.StateDir)
	}
	return nil
}

// checkWorkspace refuses a directory that is no mount of its own: writes there
// would have no limit. The cwd must be there, reached without links.
func (s *Spec) checkWorkspace() error {
	var here, above unix.Stat_t
	if err := unix.Lstat(s.Workspace, &here); err != nil {
		return fmt.Errorf("workspace %s: %w", s.Workspace, err)
	}
	if err := unix.Lstat(filepath.Dir(s.Workspace), &above); err != nil {
		return fmt.Errorf("workspace %s: %w", s.Workspace, err)
	}
	if here.Dev == above.Dev {
		return fmt.Errorf("workspace %s was not mounted by MountWorkspace", s.Workspace)
	}
	fd, err := openBeneath(s.Workspace, s.Job.Cwd, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("cwd %q is no directory of the workspace: %w", s.Job.Cwd, err)
	}
	return unix.Close(fd)
}

// checkExecutable looks for the file that the pinned copy is bound over.
func (s *Spec) checkExecutable() error {
	info, err := os.Lstat(s.Executable)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("pinned executable %s is no executable file", s.Executable)
	}
	guest := s.Job.Executable.Path
	if !filepath.IsAbs(guest) || filepath.Clean(guest) != guest {
		return fmt.Errorf("executable path %q is not absolute and clean", guest)
	}
	base := s.RootFS.Path
	if s.RootFS.Host {
		if !strings.HasPrefix(guest, "/usr/") {
			return fmt.Errorf("executable %s is not below /usr: name its real path", guest)
		}
		base = "/"
	}
	fd, err := openBeneath(base, strings.TrimPrefix(guest, "/"), 0)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("executable %s has a symbolic link in its path: name its real path", guest)
	}
	if err != nil {
		return fmt.Errorf("executable %s in the guest's root: %w", guest, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("executable %s is no regular file in the guest's root", guest)
	}
	return nil
}

// openBeneath opens a relative path below dir without following any link.
func openBeneath(dir, path string, flags uint64) (int, error) {
	base, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(base)
	return unix.Openat2(base, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// GiveWorkspace makes the job the owner of everything in its workspace, and
// follows no link. No process may write there meanwhile.
func GiveWorkspace(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, HostUID, HostUID)
	})
	if err != nil {
		return fmt.Errorf("give the workspace to the job: %w", err)
	}
	return nil
}

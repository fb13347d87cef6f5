package gvisor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"underwrite/runner/sandbox"
)

// flags configure gVisor: no network, no cgroups of its own (the job's are
// made before it starts), a filter and a pids controller inside the guest, and
// no overlay, so that the workspace's files are the job's own. Nothing is
// shared with other sandboxes, so that nothing stays behind.
var flags = []string{
	"--root=" + viewState, "--panic-log=" + panicLog, "--network=none", "--gofer-network-namespace=new", "--host-settings=ignore",
	"--ignore-cgroups", "--in-sandbox-cgroup=v2", "--oci-seccomp", "--overlay2=none",
	"--platform=systrap", "--directfs=true", "--host-uds=none", "--host-fifo=none",
	"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
}

// panicLog gets gVisor's last words, which go into the error.
const panicLog = viewState + "/panic"

// maxLastWords bounds what is taken from it, in bytes.
const maxLastWords = 2 << 10

// statusTimeout bounds the wait for a descriptor that closed when the job was
// executed, or at the latest when it ended.
const statusTimeout = 5 * time.Second

// pollInterval is how often the counters inside the sandbox are read. Reading
// costs CPU time that is counted as the job's.
const pollInterval = 250 * time.Millisecond

// A supervisor serves one job. It is the first process of its own pid
// namespace: when it dies, for whatever reason, the kernel kills everything
// that it has started.
type supervisor struct {
	task *task
	conf *config.Config
	box  *container.Container

	mu     sync.Mutex // guards report
	report *json.Encoder
}

// supervise is the main function of the supervisor's process.
func supervise() {
	s := &supervisor{report: json.NewEncoder(os.NewFile(reportFD, "report"))}
	for fd := configFD; fd <= stderrFD; fd++ {
		unix.CloseOnExec(fd)
	}
	if err := s.run(); err != nil {
		s.send(event{Kind: eventError, Error: err.Error() + lastWords()})
		os.Exit(1)
	}
	os.Exit(0)
}

// lastWords returns the beginning of what gVisor wrote when it gave up, made
// safe, since a guest may have provoked it.
func lastWords() string {
	f, err := os.Open(panicLog)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxLastWords))
	if len(b) == 0 {
		return ""
	}
	return fmt.Sprintf(": gVisor says %q", b)
}

func (s *supervisor) send(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.report.Encode(e) != nil {
		os.Exit(1) // nobody listens any more
	}
}

func (s *supervisor) run() error {
	launch := lifeline()
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.boot(); err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	s.send(event{Kind: eventReady})
	<-launch
	if err := s.job(); err != nil {
		return err
	}
	if err := s.box.Destroy(); err != nil {
		return fmt.Errorf("destroy sandbox: %w", err)
	}
	s.send(event{Kind: eventDone})
	return nil
}

// lifeline ends this process when its caller does, and tells when the caller
// wants the job launched.
func lifeline() (launch <-chan struct{}) {
	c := make(chan struct{})
	go func() {
		f := os.NewFile(goFD, "go")
		var b [1]byte
		if n, _ := f.Read(b[:]); n == 1 {
			close(c)
			_, _ = f.Read(b[:])
		}
		os.Exit(1)
	}()
	return c
}

// prepare puts this process where its children shall live.
func (s *supervisor) prepare() error {
	if err := json.NewDecoder(os.NewFile(configFD, "task")).Decode(&s.task); err != nil {
		return fmt.Errorf("read task: %w", err)
	}
	for _, dir := range s.task.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if err := enterView(s.task); err != nil {
		return err
	}
	set := flag.NewFlagSet("runsc", flag.ContinueOnError)
	config.RegisterFlags(set)
	if err := set.Parse(flags); err != nil {
		return err
	}
	var err error
	s.conf, err = config.NewFromFlags(set)
	return err
}

// boot starts the sandbox with the controller as its first process and returns
// when the controller has set the limit on processes.
func (s *supervisor) boot() error {
	bundle, err := s.writeBundle()
	if err != nil {
		return err
	}
	// In a guest without a cgroup namespace of its own, its cgroup has the
	// container's name. One more task than the job may have: the controller.
	limitFile := "/sys/fs/cgroup/" + s.task.ID + "/pids.max"
	controller, err := sealed("controller", sandbox.Controller(limitFile, strconv.FormatInt(s.task.Processes+1, 10)))
	if err != nil {
		return err
	}
	defer controller.Close()
	ready, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	os.Stdin, os.Stdout, os.Stderr = null, w, null // gVisor hands these to the first process
	s.box, err = container.New(s.conf, container.Args{
		ID: s.task.ID, Spec: sandbox.GuestSpec(s.guestView()), BundleDir: bundle, Attached: true, ExecFile: controller,
	})
	if err != nil {
		return err
	}
	if err := s.box.Start(s.conf); err != nil {
		return err
	}
	w.Close()
	var b [1]byte
	if _, err := io.ReadFull(ready, b[:]); err != nil || b[0] != sandbox.ControllerReady {
		return fmt.Errorf("the limit on processes was not set: %w", err)
	}
	return nil
}

func (s *supervisor) guestView() sandbox.View {
	v := sandbox.View{
		Root: viewRoot, Workspace: viewWorkspace, Executable: viewExec,
		GuestExecutable: s.task.Path, MemoryBytes: s.task.MemoryBytes,
	}
	if s.task.HostUsr {
		v.Usr = viewUsr
	}
	return v
}

// writeBundle writes the specification where gVisor's processes look for it.
func (s *supervisor) writeBundle() (dir string, err error) {
	dir = filepath.Join(viewState, "bundle")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	b, err := json.Marshal(sandbox.GuestSpec(s.guestView()))
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}

// sealed returns a read-only file with an image that nobody can change.
func sealed(name string, image []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory file %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if _, err := f.Write(image); err != nil {
		return nil, fmt.Errorf("memory file %s: %w", name, err)
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal %s: %w", name, err)
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// job launches the job, waits for it and reports how it ended and what the
// sandbox counted.
func (s *supervisor) job() error {
	status, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer status.Close()
	pid, err := s.launch(w)
	w.Close()
	if err != nil {
		return fmt.Errorf("launch job: %w", err)
	}
	stop := make(chan struct{})
	var polling sync.WaitGroup
	polling.Go(func() { s.poll(stop) })
	ended, err := s.box.WaitPID(pid)
	close(stop)
	polling.Wait()
	if err != nil {
		return fmt.Errorf("wait for job: %w", err)
	}
	if err := s.goferLives(); err != nil {
		return err // gVisor kills the job then: its wait status is not the job's own
	}
	errno, err := execError(status)
	if err != nil {
		return err
	}
	s.send(event{Kind: eventExited, Status: uint32(ended), Errno: errno})
	usage, err := s.counters()
	if err != nil {
		return err
	}
	s.send(usage)
	return nil
}

// exiting is the kernel's flag of a process that has begun to end (PF_EXITING):
// it is set before the process's sockets close, by which gVisor notices.
const exiting = 0x4

// goferLives is nil if the gofer has not ended or begun to end.
func (s *supervisor) goferLives() error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.box.GoferPid.Load()))
	if err != nil {
		return fmt.Errorf("the gofer died: %w", err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // its name has no parenthesis
	fields := strings.Fields(rest)
	const state, flags = 0, 6
	if len(fields) <= flags {
		return errors.New("the gofer's state is not known")
	}
	bits, err := strconv.ParseUint(fields[flags], 10, 64)
	if err != nil || fields[state] == "Z" || bits&exiting != 0 {
		return errors.New("the gofer died")
	}
	return nil
}

// launch executes the launcher in the guest; status becomes the descriptor on
// which it reports that the job could not be executed.
func (s *supervisor) launch(status *os.File) (pid int32, err error) {
	image, err := sandbox.Launcher(s.task.Path, s.task.Argv, s.task.Env)
	if err != nil {
		return 0, err
	}
	launcher, err := sealed("launcher", image)
	if err != nil {
		return 0, err
	}
	defer launcher.Close()
	stdout, stderr := os.NewFile(stdoutFD, "stdout"), os.NewFile(stderrFD, "stderr")
	defer stdout.Close()
	defer stderr.Close()
	return s.box.Execute(s.conf, &control.ExecArgs{
		Argv: []string{"launcher"}, Envv: []string{}, WorkingDirectory: s.task.Cwd,
		KUID: sandbox.GuestUID, KGID: sandbox.GuestUID,
		NoNewPrivileges: true, Capabilities: &auth.TaskCapabilities{},
		FilePayload: control.NewFilePayload(map[int]*os.File{
			1: stdout, 2: stderr, sandbox.LauncherStatusFD: status,
		}, launcher),
	})
}

// execError returns the error number that the launcher reported, 0 if the job
// was executed.
func execError(status *os.File) (int64, error) {
	if err := status.SetReadDeadline(time.Now().Add(statusTimeout)); err != nil {
		return 0, fmt.Errorf("launcher's status: %w", err)
	}
	var b [8]byte
	switch _, err := io.ReadFull(status, b[:]); {
	case errors.Is(err, io.EOF):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("launcher's status: %w", err)
	}
	return -int64(binary.LittleEndian.Uint64(b[:])), nil
}

// poll reports the counters until stop, as long as they can be read.
func (s *supervisor) poll(stop <-chan struct{}) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		usage, err := s.counters()
		if err != nil {
			return // the sandbox is ending; the last reading tells whether that is an error
		}
		s.send(usage)
	}
}

// counters reads what the sandbox counted about the job's tasks.
func (s *supervisor) counters() (event, error) {
	peak, err := s.counter("pids.peak", "")
	if err != nil {
		return event{}, err
	}
	denials, err := s.counter("pids.events", "max")
	// Without the controller, which is always there.
	return event{Kind: eventUsage, Peak: max(peak-1, 0), Denials: denials}, err
}

func (s *supervisor) counter(name, key string) (int64, error) {
	text, err := s.box.Sandbox.CgroupsReadControlFile(control.CgroupControlFile{
		Controller: "pids", Path: "/" + s.task.ID, Name: name,
	})
	if err != nil {
		return 0, fmt.Errorf("read %s in the sandbox: %w", name, err)
	}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 0 && (key == "" || len(fields) == 2 && fields[0] == key) {
			return strconv.ParseInt(fields[len(fields)-1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s in the sandbox: no counter %q", name, key)
}

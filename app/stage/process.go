package stage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// A Process is one of the product's own processes, with its log in a file.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // valid once done is closed
}

// start runs the binary with args and waits for its first line on standard
// output, which says that it is ready. Ending ctx before that stops it; later,
// Stop and Kill do.
func (s *Stage) start(ctx context.Context, name string, args ...string) (p *Process, ready string, err error) {
	p = &Process{name: name, log: s.Path(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, "", fmt.Errorf("log of %s: %w", name, err)
	}
	defer log.Close()
	out, w, err := os.Pipe()
	if err != nil {
		return nil, "", fmt.Errorf("output of %s: %w", name, err)
	}
	p.cmd = exec.Command(s.Self, args...)
	p.cmd.Env = []string{"PATH=" + toolPath, "LANG=C.UTF-8"}
	p.cmd.Dir = s.Dir
	p.cmd.Stdout, p.cmd.Stderr = w, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	err = p.cmd.Start()
	w.Close()
	if err != nil {
		out.Close()
		return nil, "", fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	lines := bufio.NewReader(out)
	stop := context.AfterFunc(ctx, func() { p.cmd.Process.Signal(syscall.SIGTERM) })
	ready, err = lines.ReadString('\n')
	stop()
	if err != nil {
		<-p.done
		return nil, "", errors.Join(ctx.Err(), fmt.Errorf("%s ended at once: %s", name, p.lastLine()))
	}
	go func() {
		defer out.Close()
		io.Copy(io.Discard, lines)
	}()
	return p, strings.TrimSpace(ready), nil
}

// toolPath is where the product's processes find git.
const toolPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process at once, as a power failure would, and waits for it.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end and waits for it.
func (p *Process) Stop() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return fmt.Errorf("%s: %w: %s", p.name, p.err, p.lastLine())
	}
	return p.err
}

// lastLine returns the last line of the log, for messages.
func (p *Process) lastLine() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// Command runs the binary once and returns its standard output.
func (s *Stage) Command(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.Self, args...)
	cmd.Env = []string{"PATH=" + toolPath, "LANG=C.UTF-8"}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("underwrite %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

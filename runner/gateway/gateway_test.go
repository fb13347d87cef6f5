package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"underwrite/attest"
	"underwrite/runner"
	"underwrite/runner/gateway"
	"underwrite/runner/wire"
)

// The test binary also plays the other processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "execute":
			os.Exit(playExecution(os.Args[2:]))
		case "serve":
			if err := serve(context.Background(), os.Args[2], os.Args[3]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		case "client":
			c := wire.Client{Socket: os.Args[2]}
			fmt.Println(c.Acknowledge(context.Background(), os.Args[3]))
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func serve(ctx context.Context, config, socket string) error {
	return gateway.Serve(ctx, gateway.Options{
		ConfigPath: config, Socket: socket, Execute: []string{os.Args[0], "execute"}, Log: zerolog.Nop(),
	})
}

// playExecution is an execution whose behaviour is the request's text.
func playExecution(args []string) int {
	fs := flag.NewFlagSet("execute", flag.ExitOnError)
	fs.String("config", "", "")
	request := fs.String("request", "", "")
	bundle := fs.String("source-bundle", "", "")
	evidence := fs.String("evidence-dir", "", "")
	fs.String("diagnostics", "", "")
	eventsFD := fs.Int("events-fd", 0, "")
	fs.Parse(args)
	text, err := os.ReadFile(*request)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	events := json.NewEncoder(os.NewFile(uintptr(*eventsFD), "events"))
	word, arg, _ := strings.Cut(string(text), " ")
	say := func(o wire.Outcome) int { os.Stdout.Write(o.Line()); return o.ExitCode() }
	switch word {
	case "complete":
		content, _ := os.ReadFile(*bundle)
		events.Encode(wire.Event{Phase: wire.PhaseRun})
		events.Encode(wire.Event{Stdout: content})
		os.Mkdir(*evidence, 0o750)
		for _, f := range wire.EvidenceFiles {
			os.WriteFile(filepath.Join(*evidence, f), []byte(f), 0o640)
		}
		return say(wire.Outcome{Version: 1, Status: wire.Complete, EvidenceDir: *evidence})
	case "environment":
		return say(wire.NewOutcome(wire.Failed, strings.Join(os.Environ(), ";")))
	case "crash":
		return 7
	case "lie":
		say(wire.Outcome{Version: 1, Status: wire.Complete, EvidenceDir: *evidence})
		return 2
	case "wait": // until it is told to stop; leaves a note about it
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		os.WriteFile(arg+".started", nil, 0o600)
		events.Encode(wire.Event{Phase: wire.PhaseRun})
		<-stop
		os.WriteFile(arg+".stopped", nil, 0o600)
		return say(wire.NewOutcome(wire.Failed, "cancelled"))
	}
	return 9
}

// installed is a gateway's directory with a configuration.
type installed struct{ dir, config, socket, outbox string }

func install(t *testing.T, change func(string) string) installed {
	t.Helper()
	dir := t.TempDir()
	in := installed{dir, filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "gw.sock"), filepath.Join(dir, "outbox")}
	text := fmt.Sprintf(`version: 1
deployment: example
signer: urn:underwrite:signer:example
key: %[1]s/key.pem
state: %[1]s/state
outbox: %[1]s/outbox
allowedUids: [%[2]d]
repositories: [octo-org/*]
ceilings: {wallSeconds: 60, cpuSeconds: 60, memoryBytes: 1073741824, processes: 256, workspaceBytes: 268435456, outputBytes: 1048576}
capabilityLifetimeSeconds: 120
concurrency: 1
sourceBundleBytes: 1000
profiles:
  unit:
    argv: [/usr/bin/env]
    root: host
    limits: {wallSeconds: 30, cpuSeconds: 30, memoryBytes: 536870912, processes: 64, workspaceBytes: 134217728, outputBytes: 65536}
`, dir, os.Getuid())
	must(t, os.WriteFile(in.config, []byte(change(text)), 0o600))
	_, _, err := runner.GenerateKey(filepath.Join(dir, "key.pem"))
	must(t, err)
	must(t, runner.Init(t.Context(), in.config))
	// The resident gateway works without the signing key.
	must(t, os.Remove(filepath.Join(dir, "key.pem")))
	return in
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(s string) string { return s }

// start serves until the test ends and returns a client.
func (in installed) start(t *testing.T) *wire.Client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, in.config, in.socket) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	in.waitForSocket(t)
	return &wire.Client{Socket: in.socket}
}

func (in installed) waitForSocket(t *testing.T) {
	t.Helper()
	eventually(t, "the gateway listens", func() bool {
		c, err := net.Dial("unix", in.socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1500 {
		if ok() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("in 30 s not true: %s", what)
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

func (in installed) bundle(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pr.bundle")
	must(t, os.WriteFile(path, bytes.Repeat([]byte("b"), size), 0o600))
	return path
}

func TestExecuteAndAcknowledge(t *testing.T) {
	in := install(t, same)
	c := in.start(t)
	var phases []string
	var output []byte
	o, err := c.Execute(t.Context(), []byte("complete"), in.bundle(t, 10), func(e wire.Event) {
		phases = append(phases, e.Phase)
		output = append(output, e.Stdout...)
	})
	must(t, err)
	want := filepath.Join(in.outbox, attest.SHA256Hex([]byte("complete")))
	if o.Status != wire.Complete || o.EvidenceDir != want {
		t.Fatalf("outcome = %+v", o)
	}
	if string(output) != "bbbbbbbbbb" || len(phases) != 2 || phases[0] != wire.PhaseRun {
		t.Errorf("events = %q %q", phases, output)
	}
	for range 2 { // acknowledging again is no error
		must(t, c.Acknowledge(t.Context(), o.EvidenceDir))
		if left, _ := os.ReadDir(in.outbox); len(left) != 0 {
			t.Errorf("outbox holds %v", left)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(in.dir, "state/spool")); len(left) != 0 {
		t.Errorf("spool holds %v", left)
	}
}

func TestAcknowledgeRefuses(t *testing.T) {
	in := install(t, same)
	c := in.start(t)
	name := strings.Repeat("a", 64)
	foreign := filepath.Join(in.outbox, name)
	must(t, os.Mkdir(foreign, 0o700))
	must(t, os.WriteFile(filepath.Join(foreign, "precious"), nil, 0o600))
	outside := filepath.Join(in.dir, name)
	must(t, os.Mkdir(outside, 0o700))
	link := filepath.Join(in.outbox, strings.Repeat("b", 64))
	must(t, os.Symlink(outside, link))
	for _, dir := range []string{outside, in.outbox, filepath.Join(in.outbox, "x"), foreign, link, in.outbox + "/../" + name} {
		if err := c.Acknowledge(t.Context(), dir); err == nil {
			t.Errorf("acknowledged %s", dir)
		}
	}
	if !exists(outside) {
		t.Error("a directory outside the outbox is gone")
	}
	if !exists(filepath.Join(foreign, "precious")) {
		t.Error("a foreign file is gone")
	}
}

func TestChildWithoutOutcomeIsNoOutcome(t *testing.T) {
	in := install(t, same)
	c := in.start(t)
	for _, word := range []string{"crash", "lie"} {
		if o, err := c.Execute(t.Context(), []byte(word), in.bundle(t, 1), nil); err == nil {
			t.Errorf("%s: outcome %+v", word, o)
		}
	}
}

func TestChildEnvironment(t *testing.T) {
	t.Setenv("GITHUB_TOKEN", "must not be inherited")
	in := install(t, same)
	o, err := in.start(t).Execute(t.Context(), []byte("environment"), in.bundle(t, 1), nil)
	must(t, err)
	if o.Status != wire.Failed || !strings.HasPrefix(o.Reason, "PATH=") || strings.Contains(o.Reason, ";") {
		t.Errorf("the child's environment is %q", o.Reason)
	}
}

// TestLargeBundleIsNotSpooled: the execution gets an empty bundle and refuses
// the request by its own rules.
func TestLargeBundleIsNotSpooled(t *testing.T) {
	in := install(t, same)
	var output int
	o, err := in.start(t).Execute(t.Context(), []byte("complete"), in.bundle(t, 1001), func(e wire.Event) { output += len(e.Stdout) })
	if err == nil && (o.Status != wire.Complete || output != 0) {
		t.Errorf("Execute = %+v, the child saw %d bytes", o, output)
	}
}

func TestClosingCancels(t *testing.T) {
	in := install(t, same)
	c := in.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	mark := filepath.Join(in.dir, "mark")
	_, err := c.Execute(ctx, []byte("wait "+mark), in.bundle(t, 1), func(wire.Event) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Execute = %v, want context.Canceled", err)
	}
	eventually(t, "the child was told to stop", func() bool { return exists(mark + ".stopped") })
}

// TestConcurrency: the second request waits, says so, and starts when the first
// one ends.
func TestConcurrency(t *testing.T) {
	in := install(t, same)
	c := in.start(t)
	first, cancelFirst := context.WithCancel(t.Context())
	second, cancelSecond := context.WithCancel(t.Context())
	defer cancelSecond()
	one, two := filepath.Join(in.dir, "one"), filepath.Join(in.dir, "two")
	var wg sync.WaitGroup
	wg.Go(func() { c.Execute(first, []byte("wait "+one), in.bundle(t, 1), nil) })
	eventually(t, "the first started", func() bool { return exists(one + ".started") })
	queued := make(chan string, 8)
	wg.Go(func() {
		c.Execute(second, []byte("wait "+two), in.bundle(t, 1), func(e wire.Event) { queued <- e.Phase })
	})
	if phase := <-queued; phase != wire.PhaseQueue {
		t.Errorf("first event of the second request is %q", phase)
	}
	if exists(two + ".started") {
		t.Error("both run at once")
	}
	cancelFirst()
	eventually(t, "the second started", func() bool { return exists(two + ".started") })
	if !exists(one + ".stopped") {
		t.Error("the second started before the first ended")
	}
	cancelSecond()
	wg.Wait()
}

func TestPeerRefused(t *testing.T) {
	in := install(t, func(s string) string {
		return strings.Replace(s, fmt.Sprintf("[%d]", os.Getuid()), "[54321]", 1)
	})
	c := in.start(t)
	_, err := c.Execute(t.Context(), []byte("complete"), in.bundle(t, 1), nil)
	if err == nil || !strings.Contains(err.Error(), "allowedUids") {
		t.Errorf("Execute = %v", err)
	}
}

// TestPeerByUser: another user's process is known by its user, not by what it says.
func TestPeerByUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	in := install(t, func(s string) string { return strings.Replace(s, "[0]", "[54321]", 1) })
	in.start(t)
	for _, dir := range []string{in.dir, filepath.Dir(in.dir)} {
		must(t, os.Chmod(dir, 0o755))
	}
	program := filepath.Join(in.dir, "program") // where the other user can reach it
	must(t, exec.Command("cp", os.Args[0], program).Run())
	for uid, want := range map[uint32]string{54321: "<nil>", 54322: "allowedUids"} {
		cmd := exec.Command(program, "client", in.socket, filepath.Join(in.outbox, strings.Repeat("c", 64)))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("uid %d: %s, %v, want %q", uid, out, err, want)
		}
	}
}

func TestMalformedClients(t *testing.T) {
	in := install(t, same)
	c := in.start(t)
	for name, send := range map[string]string{
		"garbage":           "GET / HTTP/1.1\r\n\r\n",
		"unknown operation": `{"version":1,"op":"sign"}` + "\n",
		"huge request":      fmt.Sprintf(`{"version":1,"op":"execute","requestBytes":%d,"bundleBytes":1}`, wire.MaxRequestBytes+1) + "\n",
		"short body":        `{"version":1,"op":"execute","requestBytes":10,"bundleBytes":1}` + "\nabc",
		"endless header":    strings.Repeat("x", 2*wire.MaxHeaderBytes) + "\n",
	} {
		conn, err := net.Dial("unix", in.socket)
		must(t, err)
		io.WriteString(conn, send)
		conn.(*net.UnixConn).CloseWrite()
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if !bytes.HasPrefix(answer, []byte(`{"error":`)) {
			t.Errorf("%s: answer %q", name, answer)
		}
	}
	if _, err := c.Execute(t.Context(), []byte("complete"), in.bundle(t, 1), nil); err != nil {
		t.Errorf("the gateway does not work any more: %v", err)
	}
}

func TestOneGatewayAtATime(t *testing.T) {
	in := install(t, same)
	in.start(t)
	if err := serve(t.Context(), in.config, in.socket+"2"); err == nil || !strings.Contains(err.Error(), "another gateway") {
		t.Errorf("second Serve = %v", err)
	}
}

func TestServeRefusesForeignFile(t *testing.T) {
	in := install(t, same)
	must(t, os.WriteFile(in.socket, []byte("precious"), 0o600))
	if err := serve(t.Context(), in.config, in.socket); err == nil || !exists(in.socket) {
		t.Errorf("Serve over a file = %v", err)
	}
}

// TestKilledGateway: a gateway that is killed takes its executions along, and
// the next one starts on the same socket and finishes an interrupted removal.
func TestKilledGateway(t *testing.T) {
	in := install(t, same)
	gw := exec.Command(os.Args[0], "serve", in.config, in.socket)
	gw.Stdout = os.Stderr
	must(t, gw.Start())
	in.waitForSocket(t)
	mark := filepath.Join(in.dir, "mark")
	var wg sync.WaitGroup
	wg.Go(func() {
		c := wire.Client{Socket: in.socket}
		if o, err := c.Execute(context.Background(), []byte("wait "+mark), in.bundle(t, 1), nil); err == nil {
			t.Errorf("outcome %+v from a killed gateway", o)
		}
	})
	eventually(t, "the child started", func() bool { return exists(mark + ".started") })
	gw.Process.Kill()
	gw.Wait()
	wg.Wait()
	eventually(t, "the child stopped", func() bool { return exists(mark + ".stopped") })
	trash := filepath.Join(in.outbox, ".underwrite-consumed-"+strings.Repeat("a", 64))
	must(t, os.Mkdir(trash, 0o700))
	must(t, os.WriteFile(filepath.Join(trash, wire.StdoutFile), nil, 0o600))
	c := in.start(t)
	if o, err := c.Execute(t.Context(), []byte("complete"), in.bundle(t, 1), nil); err != nil || o.Status != wire.Complete {
		t.Errorf("after the restart: %+v, %v", o, err)
	}
	if exists(trash) {
		t.Error("the interrupted removal was not finished")
	}
}

package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"underwrite/app/apptest"
	"underwrite/app/hubsim"
	"underwrite/app/serve"
	"underwrite/store/storetest"
)

const shop = "octo-org/shop"

// site is GitHub, a gateway and a controller, the latter two as processes of the
// real binary. The controller is killed and started again.
type site struct {
	t       *testing.T
	binary  string
	hub     *hubsim.Hub
	gate    *gate
	in      installation
	outbox  string
	serving *exec.Cmd
}

func newSite(t *testing.T) *site {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("the gateway needs root")
		}
		t.Skip("the gateway needs root")
	}
	s := &site{t: t, binary: apptest.Binary(t), gate: &gate{}}
	s.hub = newHub(t, hubsim.Options{Middleware: s.gate.middleware})
	_, err := s.hub.CreateRepo(shop, hubsim.File("README.md", "a shop\n"))
	must(t, err)
	_, err = s.hub.Install("octo-org")
	must(t, err)
	profile, publicKey, socket := s.startGateway()
	s.in = installFor(t, s.hub, socket, profile, publicKey)
	s.run("init", "--config", s.in.config)
	s.startController()
	t.Cleanup(func() { s.kill() })
	return s
}

// run runs the binary to its end and returns its output.
func (s *site) run(args ...string) []byte {
	s.t.Helper()
	out, err := exec.Command(s.binary, args...).Output()
	if err != nil {
		s.t.Fatalf("underwrite %q: %v\n%s", args, err, stderr(err))
	}
	return out
}

func stderr(err error) []byte {
	if e, ok := err.(*exec.ExitError); ok {
		return e.Stderr
	}
	return nil
}

func (s *site) startGateway() (profile, publicKey []byte, socket string) {
	s.t.Helper()
	dir := s.t.TempDir()
	s.outbox, socket = filepath.Join(dir, "outbox"), filepath.Join(dir, "gateway.sock")
	conf := write(s.t, filepath.Join(dir, "gateway.yml"), fmt.Appendf(nil, `version: 1
deployment: example
signer: urn:underwrite:signer:example
key: %[1]s/key.pem
state: %[1]s/state
outbox: %[2]s
allowedUids: [%[3]d]
repositories: [octo-org/*]
ceilings: {wallSeconds: 600, cpuSeconds: 600, memoryBytes: 1073741824, processes: 256, workspaceBytes: 268435456, outputBytes: 1048576}
capabilityLifetimeSeconds: 120
concurrency: 2
profiles:
  unit:
    argv: [/bin/sh, run.sh]
    environment: {LANG: C.UTF-8, PATH: /usr/bin:/bin}
    root: host
    limits: {wallSeconds: 300, cpuSeconds: 300, memoryBytes: 536870912, processes: 64, workspaceBytes: 67108864, outputBytes: 65536}
`, dir, s.outbox, os.Getuid()))
	s.run("keygen", filepath.Join(dir, "key.pem"))
	s.run("gateway", "init", "--config", conf)
	profile = s.run("gateway", "profile", "unit", "--config", conf)
	publicKey, err := os.ReadFile(filepath.Join(dir, "key.pub.pem"))
	must(s.t, err)
	cmd, _ := s.startProcess("gateway", "run", "--config", conf, "--socket", socket)
	s.t.Cleanup(func() { // let it take its sandboxes down
		must(s.t, cmd.Process.Signal(os.Interrupt))
		cmd.Wait()
	})
	return profile, publicKey, socket
}

// startProcess starts a resident process and waits for its first line.
func (s *site) startProcess(args ...string) (*exec.Cmd, string) {
	s.t.Helper()
	cmd := exec.Command(s.binary, args...)
	out, err := cmd.StdoutPipe()
	must(s.t, err)
	cmd.Stderr = s.t.Output()
	cmd.WaitDelay = 10 * time.Second // for a child that outlives it, with the same stderr
	must(s.t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.t.Fatalf("underwrite %q said nothing: %v", args, err)
	}
	return cmd, strings.TrimSpace(line)
}

// startController starts the controller, and redelivers what GitHub could not
// deliver while it was dead.
func (s *site) startController() {
	s.t.Helper()
	cmd, line := s.startProcess("serve", "--config", s.in.config)
	addr, ok := strings.CutPrefix(line, "listening on ")
	if !ok {
		s.t.Fatalf("serve says %q", line)
	}
	s.serving = cmd
	s.hub.SetWebhookURL("http://" + addr + serve.WebhookPath)
	must(s.t, s.hub.Flush(s.t.Context()))
	arrived := map[string]bool{}
	for _, d := range s.hub.Deliveries() {
		arrived[d.GUID] = arrived[d.GUID] || d.StatusCode == http.StatusAccepted
	}
	for _, d := range s.hub.Deliveries() {
		if !arrived[d.GUID] {
			arrived[d.GUID] = true
			_, err := s.hub.Redeliver(d.ID)
			must(s.t, err)
		}
	}
	must(s.t, s.hub.Flush(s.t.Context()))
}

// kill kills the controller with SIGKILL and lets what is held at GitHub go on.
func (s *site) kill() {
	s.t.Helper()
	if s.serving == nil {
		return
	}
	must(s.t, s.serving.Process.Kill())
	s.serving.Wait()
	s.serving = nil
	s.gate.open()
}

// open opens a pull request whose check runs the script; it returns its head.
func (s *site) open(branch, script string) string {
	s.t.Helper()
	n, err := s.hub.OpenPullRequest(hubsim.NewPullRequest{Repo: shop, Branch: branch, Changes: []hubsim.Change{
		hubsim.File("run.sh", script), hubsim.File("branch", branch),
	}})
	must(s.t, err)
	pr, err := s.hub.PullRequest(shop, n)
	must(s.t, err)
	return pr.HeadSHA
}

// want waits until the head's only check run ends as it must.
func (s *site) want(head, conclusion, title string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	run, err := s.hub.WaitForCheckRun(ctx, shop, head, "underwrite/tests")
	if err != nil {
		s.t.Fatalf("the check run is still %s %q: %v", run.Status, run.Title, err)
	}
	if run.Conclusion != conclusion || !strings.HasPrefix(run.Title, title) {
		s.t.Errorf("check run %s %q, want %s %q", run.Conclusion, run.Title, conclusion, title)
	}
	if runs := s.hub.CheckRuns(shop, head); len(runs) != 1 {
		s.t.Errorf("%d check runs on one head, want 1", len(runs))
	}
}

// settled waits until nothing is left to do, and checks the database.
func (s *site) settled() {
	s.t.Helper()
	path := serve.Database(s.in.dataDir)
	var left []string
	eventually(s.t, "all work is done", func() bool {
		var err error
		left, err = storetest.Unfinished(s.t.Context(), path)
		return err == nil && len(left) == 0
	})
	wrong, err := storetest.Check(s.t.Context(), path)
	must(s.t, err)
	for _, w := range wrong {
		s.t.Error(w)
	}
	if entries, err := os.ReadDir(s.outbox); err != nil || len(entries) != 0 {
		s.t.Errorf("the outbox still holds %v, %v", entries, err)
	}
}

// gate holds one request to GitHub.
type gate struct {
	mu      sync.Mutex
	matches func(method, path, body string) bool
	after   bool // hold the answer, not the request
	held    chan struct{}
	release chan struct{}
}

// hold lets the next matching request wait, before GitHub sees it or after it
// was carried out, and returns a channel that is closed when it does.
func (g *gate) hold(after bool, matches func(method, path, body string) bool) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.matches, g.after, g.held, g.release = matches, after, make(chan struct{}), make(chan struct{})
	return g.held
}

// open lets everything pass.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.matches = nil
	if g.release != nil {
		close(g.release)
		g.release = nil
	}
}

// take is whether this request is to be held; only one is.
func (g *gate) take(r *http.Request, body []byte) (held, release chan struct{}, after, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.matches == nil || !g.matches(r.Method, r.URL.Path, string(body)) {
		return nil, nil, false, false
	}
	g.matches = nil
	return g.held, g.release, g.after, true
}

func (g *gate) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body []byte
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
			body, _ = io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		held, release, after, ok := g.take(r, body)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if !after { // the request never arrives: its sender is killed meanwhile
			close(held)
			<-release
			return
		}
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		close(held)
		<-release
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		w.Write(answer.Body.Bytes())
	})
}

// TestKill kills the controller with SIGKILL in each state of an execution's
// life. After a restart every pull request ends as if nothing had happened, with
// one check run, at most one receipt for each proof, and nothing left over.
func TestKill(t *testing.T) {
	s := newSite(t)
	post := func(status string) func(method, path, body string) bool {
		return func(method, path, body string) bool {
			return (method == http.MethodPost || method == http.MethodPatch) && strings.Contains(path, "/check-runs") &&
				strings.Contains(strings.ReplaceAll(body, " ", ""), `"status":"`+status+`"`)
		}
	}
	made := func(method, path, _ string) bool {
		return method == http.MethodPost && strings.HasSuffix(path, "/check-runs")
	}
	held := func(after bool, matches func(method, path, body string) bool) func(t *testing.T) func(head string) {
		return func(t *testing.T) func(string) {
			reached := s.gate.hold(after, matches)
			return func(string) {
				select {
				case <-reached:
				case <-time.After(time.Minute):
					t.Fatal("the request to GitHub never came")
				}
			}
		}
	}
	poll := func(what string, ok func(head string) bool) func(t *testing.T) func(head string) {
		return func(t *testing.T) func(string) {
			return func(head string) { eventually(t, what, func() bool { return ok(head) }) }
		}
	}
	for i, c := range []struct {
		state string
		until func(t *testing.T) func(head string) // called before the pull request is opened
	}{
		{"delivery received", held(false, func(_, path, _ string) bool { return strings.Contains(path, "/pulls/") })},
		{"freezing", held(false, func(_, path, _ string) bool { return strings.HasSuffix(path, "/git-upload-pack") })},
		{"check run not made", held(false, made)},
		{"check run made but not noted", held(true, made)},
		{"running, not posted", held(false, post("in_progress"))},
		{"running, posted but not noted", held(true, post("in_progress"))},
		{"job runs", poll("the check run is in progress", func(head string) bool {
			runs := s.hub.CheckRuns(shop, head)
			return len(runs) == 1 && runs[0].Status == "in_progress"
		})},
		{"evidence published", poll("there is evidence", func(string) bool {
			entries, err := os.ReadDir(s.outbox)
			return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), ".") })
		})},
		{"consumed, not posted", held(false, post("completed"))},
		{"consumed, posted but not noted", held(true, post("completed"))},
	} {
		t.Run(c.state, func(t *testing.T) {
			s.t = t
			reached := c.until(t)
			head := s.open(fmt.Sprintf("branch-%d", i), "echo it works\nsleep 1\n")
			reached(head)
			s.kill()
			s.startController()
			s.want(head, "success", "passed")
			s.settled()
		})
	}
	s.t = t
}

// TestKillAtRandom kills the controller again and again while several pull
// requests are worked on, one of them pushed to.
func TestKillAtRandom(t *testing.T) {
	s := newSite(t)
	heads := map[string][2]string{
		s.open("passes", "exit 0\n"):                 {"success", "passed"},
		s.open("fails", "echo no >&2\nexit 7\n"):     {"failure", "exit 7, expected 0"},
		s.open("is-killed", "kill -9 $$\n"):          {"failure", "killed by"},
		s.open("needs-time", "sleep 1\necho done\n"): {"success", "passed"},
	}
	for range 6 {
		time.Sleep(rand.N(600 * time.Millisecond))
		s.kill()
		s.startController()
	}
	for head, want := range heads {
		s.want(head, want[0], want[1])
	}
	s.settled()
}

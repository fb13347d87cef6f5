package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"underwrite/app/evidence"
	"underwrite/app/evidence/evidencetest"
	"underwrite/attest"
	"underwrite/handlers"
	"underwrite/handlers/checks"
	"underwrite/handlers/freeze"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
	"underwrite/store/storetest"
)

const repo = "octo-org/shop"

func sha(c string) string { return strings.Repeat(c, 40) }

// world is everything around the controller, which survives its deaths: the
// database, GitHub and the gateway. Calls that reach it can be made to fail.
type world struct {
	t       *testing.T
	dir     string
	faults  storetest.Faults
	hub     *hub
	gateway *gateway
	checks  []Check
	// now is the clock, which only the test moves.
	now time.Time

	store *store.Store
	ctl   *Controller
}

// template is an empty database, made once.
var template = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "underwrite-controller-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "template.db")
	if err := store.Create(context.Background(), path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), now: time.Date(2026, 8, 29, 12, 0, 0, 0, time.UTC)}
	w.hub = &hub{faults: &w.faults, pulls: map[int64]freeze.PullRequest{}, runs: map[string]*posted{}}
	w.gateway = newGateway(t, w)
	b, err := template()
	must(t, err)
	must(t, os.WriteFile(w.db(), b, 0o600))
	must(t, os.Mkdir(filepath.Join(w.dir, "scratch"), 0o700))
	w.checks = []Check{{Name: "tests", ProfileName: "python", Profile: w.gateway.signer.Profile(), Group: "tests", Concurrency: 2}}
	w.start()
	t.Cleanup(func() { w.store.Close() })
	return w
}

func (w *world) db() string { return filepath.Join(w.dir, "underwrite.db") }

// start makes a controller process; restart lets the one before die first.
func (w *world) start() {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), w.db(), store.Options{Driver: w.faults.Driver()})
	must(w.t, err)
	blobs, err := blob.Create(filepath.Join(w.dir, "blobs"))
	must(w.t, err)
	w.store = s
	w.ctl, err = New(Config{
		Store: s, Blobs: blobs, Scratch: filepath.Join(w.dir, "scratch"), Executor: w.gateway, Freezer: w.hub, Pulls: w.hub, Poster: w.hub,
		Trust: w.gateway.signer.Trust(), Checks: func(string) []Check { return w.checks },
		Inspector: func(attest.Limits) evidence.Inspector { return w.gateway.inspector },
		Now:       func() time.Time { return w.now }, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	}, func(s handlers.Sessions) (Dispatcher, error) {
		accounts, err := handlers.NewAccounts("octo-org")
		if err != nil {
			return nil, err
		}
		return handlers.NewDispatcher(accounts, &handlers.PullRequestHandler{
			Accounts: accounts, Installations: w.hub, Pulls: w.hub, Sessions: s, Now: func() time.Time { return w.now },
		})
	})
	must(w.t, err)
}

func (w *world) restart() {
	w.t.Helper()
	w.store.Close()
	w.faults.Disarm()
	w.start()
}

// deliver sends the webhook of a pull request until it is stored, as GitHub's
// redelivery would.
func (w *world) deliver(guid, action string, number int64) {
	w.t.Helper()
	body := fmt.Appendf(nil, `{"number":%d}`, number)
	d := handlers.Delivery{
		GUID: guid, Event: "pull_request", Action: action, InstallationID: 1, Repo: repo, Number: number,
		Body: body, BodySHA256: attest.SHA256Hex(body), ReceivedAt: w.now,
	}
	for range 3 {
		saved, err := w.ctl.SaveDelivery(w.t.Context(), d)
		if err == nil && saved != handlers.Conflict {
			return
		}
		if !errors.Is(err, storetest.ErrInjected) {
			w.t.Fatalf("SaveDelivery = %v, %v", saved, err)
		}
		w.restart()
	}
	w.t.Fatal("the delivery cannot be stored")
}

// drain does all pending work, in the order of the tables, until nothing is
// left. If calls fail for good, the process is restarted.
func (w *world) drain() {
	w.t.Helper()
	for range 200 {
		jobs, err := w.store.Pending(w.t.Context())
		must(w.t, err)
		if len(jobs) == 0 {
			return
		}
		var dead bool
		for _, j := range jobs {
			err := j.Do(w.t.Context(), w.ctl)
			w.check()
			dead = dead || errors.Is(err, storetest.ErrInjected)
			if testing.Verbose() {
				w.t.Logf("%s: %v", j, err)
			}
		}
		if dead {
			w.restart()
		}
		w.now = w.now.Add(time.Second)
	}
	w.t.Fatal("the work never ends")
}

// check looks at everything that must hold at any time.
func (w *world) check() {
	w.t.Helper()
	wrong, err := storetest.Check(w.t.Context(), w.db())
	must(w.t, err)
	for _, s := range append(wrong, w.gateway.wrong()...) {
		w.t.Error(s)
	}
}

// finished checks what must hold when all work is done.
func (w *world) finished() {
	w.t.Helper()
	w.check()
	left, err := storetest.Unfinished(w.t.Context(), w.db())
	must(w.t, err)
	for _, s := range left {
		w.t.Errorf("unfinished: %s", s)
	}
	for _, run := range w.hub.runs {
		if run.Status != "completed" {
			w.t.Errorf("check run %s of #%s is %s for ever", run.Name, run.HeadSHA[:1], run.Status)
		}
	}
	w.gateway.mu.Lock()
	defer w.gateway.mu.Unlock()
	for _, e := range w.gateway.executions {
		if e.dir != "" && !e.acknowledged {
			w.t.Errorf("the gateway keeps %s", e.dir)
		}
	}
}

// conclusions lists what GitHub shows on a head, as "conclusion: title".
func (w *world) conclusions(head string) []string {
	var list []string
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	for _, r := range w.hub.runs {
		if r.HeadSHA == head {
			list = append(list, r.Conclusion+": "+r.Title)
		}
	}
	slices.Sort(list)
	return list
}

// want checks what GitHub shows on a head: the begin of each line.
func (w *world) want(head string, want ...string) {
	w.t.Helper()
	got := w.conclusions(head)
	ok := len(got) == len(want)
	for i := range want {
		ok = ok && strings.HasPrefix(got[i], want[i])
	}
	if !ok {
		w.t.Errorf("head %s shows %q, want %q", head[:1], got, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hub is GitHub: pull requests, freezing, check runs.
type hub struct {
	faults  *storetest.Faults
	mu      sync.Mutex
	pulls   map[int64]freeze.PullRequest
	runs    map[string]*posted // by external id
	gone    bool
	freezes func(number int64) error // called before each freeze, may be nil
}

type posted struct {
	checks.Run
	id      int64
	history []string
}

func (h *hub) open(number int64, head string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fork, id := "octo-fork/shop", int64(1234)
	h.pulls[number] = freeze.PullRequest{
		Repo: repo, Number: number, State: "open", BaseSHA: sha("b"), HeadSHA: head,
		HeadRepo: &fork, HeadRepoID: &id, HeadRef: "feature", ChangedFiles: 3,
	}
}

func (h *hub) edit(number int64, f func(*freeze.PullRequest)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	pr := h.pulls[number]
	f(&pr)
	h.pulls[number] = pr
}

func (h *hub) PullRequest(_ context.Context, _ string, number int64) (pr freeze.PullRequest, err error) {
	err = h.faults.Do("read pull request", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		var ok bool
		if pr, ok = h.pulls[number]; !ok {
			return checks.ErrGone
		}
		return nil
	})
	return pr, err
}

func (h *hub) Installation(context.Context, string) (int64, error) { return 1, nil }

func (h *hub) Freeze(ctx context.Context, repo string, number int64, dir string) (f *freeze.Frozen, err error) {
	h.mu.Lock()
	before := h.freezes
	h.mu.Unlock()
	if before != nil {
		if err := before(number); err != nil {
			return nil, err
		}
	}
	err = h.faults.Do("freeze", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		pr := h.pulls[number]
		bundle := []byte("bundle of " + pr.HeadSHA + pr.BaseSHA)
		t := evidencetest.Target(pr.HeadSHA, bundle)
		t.Number, t.State, t.BaseSHA = number, pr.State, pr.BaseSHA
		f = &freeze.Frozen{Target: t, DiffPath: dir + "/pr.diff", ContextPath: dir + "/context.json", BundlePath: dir + "/pr.bundle"}
		return errors.Join(os.WriteFile(f.DiffPath, []byte("diff"), 0o600), os.WriteFile(f.ContextPath, []byte("context"), 0o600),
			os.WriteFile(f.BundlePath, bundle, 0o600))
	})
	return f, err
}

func (h *hub) Post(_ context.Context, run checks.Run, known int64) (id int64, err error) {
	err = h.faults.Do("post", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.gone {
			return checks.ErrGone
		}
		r := h.runs[run.ExternalID]
		if r == nil {
			r = &posted{id: int64(len(h.runs) + 1)}
			h.runs[run.ExternalID] = r
		}
		if known != 0 && known != r.id {
			return fmt.Errorf("check run %d is called %d", r.id, known)
		}
		id = r.id
		if r.Status != "completed" {
			r.Run = run
			r.history = append(r.history, strings.TrimSpace(run.Status+" "+run.Conclusion))
		}
		return nil
	})
	return id, err
}

// gateway answers as the real one does: one job for each replay identity, the
// same answer for the same request, and failed for ever after a cancelled run.
type gateway struct {
	world     *world
	signer    *evidencetest.Gateway
	inspector evidence.Inspector

	mu         sync.Mutex
	executions map[string]*execution // by request
	// script says how the n-th job on a head ends, n from 0 on.
	script  func(head string, n int) ending
	started chan string // gets the head of each job that blocks
}

// ending is how a job ends.
type ending struct {
	exit   int64
	fault  *wire.Fault // instead of a receipt
	failed string      // reason of a failed outcome without a fault
	retry  string      // reason of a retry outcome; nothing happened
	blocks bool        // until it is cancelled
	edit   func(*attest.ExpectedReceipt)
}

type execution struct {
	request      attest.Request
	jobs         int // that were run: never more than one
	files        map[string][]byte
	dir          string
	acknowledged bool
	failed       string
	fault        *wire.Fault
}

func newGateway(t *testing.T, w *world) *gateway {
	g := &gateway{world: w, signer: evidencetest.New(t), executions: map[string]*execution{}, started: make(chan string, 10)}
	g.inspector = evidencetest.Inspector{Tree: g.signer.InputTree}
	g.script = func(string, int) ending { return ending{} }
	return g
}

func (g *gateway) Execute(ctx context.Context, request []byte, bundle string, events func(wire.Event)) (o wire.Outcome, err error) {
	err = g.world.faults.Do("execute", func() (err error) {
		o, err = g.execute(ctx, request, bundle, events)
		return err
	})
	return o, err
}

func (g *gateway) execute(ctx context.Context, request []byte, bundle string, events func(wire.Event)) (wire.Outcome, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.executions[string(request)]
	if e == nil {
		parsed, err := attest.ParseRequest(request)
		must(g.world.t, err)
		b, err := os.ReadFile(bundle)
		if err != nil || attest.SHA256Hex(b) != parsed.Target.ObjectBundleSHA256 {
			g.world.t.Errorf("source bundle is not the target's: %v", err)
		}
		end := g.script(parsed.Target.HeadSHA, g.count(parsed.Target.HeadSHA))
		if end.retry != "" {
			return wire.NewOutcome(wire.Retry, end.retry), nil
		}
		e = &execution{request: parsed}
		g.executions[string(request)] = e
		events(wire.Event{Phase: wire.PhaseRun, Stdout: []byte("live\n")})
		if err := g.run(ctx, e, request, end); err != nil {
			return wire.Outcome{}, err
		}
	}
	return g.answer(e, events), nil
}

func (g *gateway) count(head string) (n int) {
	for _, e := range g.executions {
		if e.request.Target.HeadSHA == head {
			n++
		}
	}
	return n
}

func (g *gateway) run(ctx context.Context, e *execution, request []byte, end ending) error {
	e.jobs++
	switch {
	case end.blocks:
		g.mu.Unlock()
		g.started <- e.request.Target.HeadSHA
		<-ctx.Done()
		g.mu.Lock()
		e.failed, e.fault = "cancelled", &wire.Fault{Kind: wire.FaultCancelled}
		return ctx.Err()
	case end.fault != nil:
		e.failed, e.fault = "it failed", end.fault
	case end.failed != "":
		e.failed = end.failed
	default:
		e.files = g.signer.Files(g.world.t, evidencetest.Run{
			Request: request, ExitCode: end.exit, Stdout: "3 passed\n", Output: "output of " + e.request.SessionID,
			Issued: g.world.now.Add(-10 * time.Second), Edit: end.edit,
		})
	}
	return nil
}

func (g *gateway) answer(e *execution, events func(wire.Event)) wire.Outcome {
	if e.failed != "" {
		if e.fault != nil {
			events(wire.Event{Fault: e.fault})
		}
		return wire.NewOutcome(wire.Failed, e.failed)
	}
	if e.dir == "" {
		e.dir = filepath.Join(g.world.dir, fmt.Sprintf("evidence-%s", e.request.Challenge[:16]))
	}
	if _, err := os.Stat(e.dir); err != nil {
		evidencetest.Write(g.world.t, e.dir, e.files)
	}
	return wire.Outcome{Version: 1, Status: wire.Complete, EvidenceDir: e.dir}
}

func (g *gateway) Acknowledge(_ context.Context, dir string) error {
	return g.world.faults.Do("acknowledge", func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, e := range g.executions {
			if e.dir == dir {
				e.acknowledged = true
				return os.RemoveAll(dir)
			}
		}
		return fmt.Errorf("%s is not known", dir)
	})
}

// wrong says what a controller must never do to a gateway.
func (g *gateway) wrong() (list []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	numbers, challenges := map[string]bool{}, map[string]bool{}
	for _, e := range g.executions {
		number := fmt.Sprintf("%s %d", e.request.SessionID, e.request.Action.Seq)
		if numbers[number] || challenges[e.request.Challenge] {
			list = append(list, "number or challenge used twice: "+number)
		}
		if e.jobs > 1 {
			list = append(list, "two jobs for "+number)
		}
		numbers[number], challenges[e.request.Challenge] = true, true
	}
	return list
}

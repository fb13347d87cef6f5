package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"underwrite/app/hubsim"
	"underwrite/app/stage"
	"underwrite/handlers/checks"
	"underwrite/runner/wire"
)

const (
	repository = "octo-org/shop"
	checkName  = "tests"
	// deadline bounds the whole demo. Nothing in it takes that long: reaching it
	// means that something hangs.
	deadline = 10 * time.Minute
)

// Options say how the demo runs.
type Options struct {
	Self  string    // path of the underwrite binary, which the demo starts for each role
	Dir   string    // directory for all files of the demo, made if missing; empty: a temporary one
	JSON  bool      // print one JSON object to Out and everything else to Err
	Serve bool      // stay up after the table until ctx ends
	Out   io.Writer // standard output
	Err   io.Writer // standard error
}

// A demo is one run of it: a hub, a gateway and a controller.
type demo struct {
	Options
	live  io.Writer // what happens, for people
	watch *watcher
	stage *stage.Stage
	hub   *hubsim.Hub
	heads []string // of the pull requests, in their order
}

// Run shows the demo. The error says what did not end as it must, or what kept
// the demo from running.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &demo{Options: o, live: o.Out}
	if o.JSON {
		d.live = o.Err
	}
	if err := d.prepare(); err != nil {
		return err
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stage.Close()) }()
	report, err := d.play(ctx)
	if err != nil {
		return err
	}
	if err := d.show(report); err != nil {
		return err
	}
	if o.Serve {
		d.stayUp(ctx)
	}
	return report.Check()
}

// prepare makes the demo's directory.
func (d *demo) prepare() (err error) {
	if d.Dir == "" {
		d.Dir, err = os.MkdirTemp("", "underwrite-demo-")
		return err
	}
	if d.Dir, err = filepath.Abs(d.Dir); err != nil {
		return err
	}
	if err := os.Mkdir(d.Dir, 0o700); err != nil {
		return fmt.Errorf("directory of the demo: %w (--dir wants a name that does not exist)", err)
	}
	return nil
}

// testsProfile runs the project's tests with the host's Python.
const testsProfile = `{argv: [python3, -m, pytest, -q, -p, "no:cacheprovider", tests], executable: /usr/bin/python3, ` +
	`environment: {LANG: C.UTF-8, PYTHONDONTWRITEBYTECODE: "1"}, cpus: 2, root: host, ` +
	`limits: {wallSeconds: 20, cpuSeconds: 20, memoryBytes: 536870912, processes: 64, workspaceBytes: 67108864, outputBytes: 1048576}}`

// start sets the stage and starts the processes.
func (d *demo) start(ctx context.Context) (err error) {
	d.watch = newWatcher(d.live)
	d.watch.say("starting a GitHub in memory, the gateway and the controller")
	d.stage, err = stage.New(ctx, stage.Options{
		Self: d.Self, Dir: d.Dir, Accounts: []string{"octo-org"}, Checks: []stage.Check{{Name: checkName, Profile: testsProfile}},
	})
	if err != nil {
		return err
	}
	d.hub = d.stage.Hub
	d.hub.OnCheckRun(d.watch.checkRun)
	if err := d.stage.Start(ctx); err != nil {
		return errors.Join(err, d.stage.Close())
	}
	return nil
}

// play opens the pull requests and waits until all have ended.
func (d *demo) play(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("not every check run was completed within %v", deadline))
	defer cancel()
	if err := d.seed(); err != nil {
		return Report{}, err
	}
	for _, p := range pulls {
		if err := d.open(p); err != nil {
			return Report{}, err
		}
	}
	running, stop := d.stage.WhileRunning(ctx)
	defer stop()
	if err := d.hub.WaitFor(running, d.completed); err != nil {
		return Report{}, cmp.Or(d.stage.Broken(), context.Cause(ctx), err)
	}
	return d.report(ctx)
}

// seed makes the repository with the project, and installs the app on it.
func (d *demo) seed() error {
	project, err := files("project", nil)
	if err != nil {
		return err
	}
	if _, err := d.hub.CreateRepo(repository, changes(project)...); err != nil {
		return err
	}
	_, err = d.hub.Install("octo-org")
	return err
}

// open opens one pull request, from a fork of its author.
func (d *demo) open(p pull) error {
	content, err := files("pulls/"+p.dir, map[string]string{
		"PORT":   d.hub.URL()[strings.LastIndexByte(d.hub.URL(), ':')+1:],
		"MARKER": d.path("gateway", "key.pem"),
	})
	if err != nil {
		return err
	}
	fork := p.author + "/shop"
	if _, err := d.hub.GitDir(fork); err != nil {
		if _, err := d.hub.Fork(repository, p.author); err != nil {
			return err
		}
	}
	number, err := d.hub.OpenPullRequest(hubsim.NewPullRequest{
		Repo: repository, HeadRepo: fork, Branch: p.branch, Title: p.title, Author: p.author, Changes: changes(content),
	})
	if err != nil {
		return err
	}
	pr, err := d.hub.PullRequest(repository, number)
	if err != nil {
		return err
	}
	d.heads = append(d.heads, pr.HeadSHA)
	d.watch.pullOpened(pr, p.title)
	return nil
}

func changes(files map[string]string) []hubsim.Change {
	var out []hubsim.Change
	for path, text := range files {
		out = append(out, hubsim.File(path, text))
	}
	slices.SortFunc(out, func(a, b hubsim.Change) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// completed reports whether each head has a completed check run.
func (d *demo) completed() bool {
	for _, head := range d.heads {
		if _, ok := d.run(head); !ok {
			return false
		}
	}
	return true
}

// run returns the completed check run on a head.
func (d *demo) run(head string) (hubsim.CheckRun, bool) {
	for _, run := range d.hub.CheckRuns(repository, head) {
		if run.Status == "completed" {
			return run, true
		}
	}
	return hubsim.CheckRun{}, false
}

func (d *demo) show(report Report) error {
	if d.JSON {
		return report.JSON(d.Out)
	}
	fmt.Fprintln(d.Out)
	if err := report.Table(d.Out); err != nil {
		return err
	}
	if err := showAttempts(d.Out, report.PullRequests[2]); err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nEvidence, keys and logs are in %s. To verify the first receipt offline:\n\n  %s\n",
		d.Dir, d.howToVerify(report.PullRequests[0]))
	return nil
}

// showAttempts prints what the curious pull request tried, from its signed
// standard output.
func showAttempts(w io.Writer, r Result) error {
	if r.EvidenceDir == "" {
		return nil
	}
	stdout, err := os.ReadFile(filepath.Join(r.EvidenceDir, wire.StdoutFile))
	if err != nil {
		return fmt.Errorf("standard output of #%d: %w", r.Number, err)
	}
	fmt.Fprintf(w, "\nWhat #%d tried in the sandbox, from its signed output:\n\n", r.Number)
	for line := range strings.Lines(string(stdout)) {
		if strings.Contains(line, ": denied (") || strings.Contains(line, ": REACHED ") {
			fmt.Fprint(w, "  ", checks.Visible(line, true))
		}
	}
	return nil
}

// stayUp prints where to look and waits for the end.
func (d *demo) stayUp(ctx context.Context) {
	fmt.Fprintf(d.live, "\nUnderwrite's pages: %s\nThe pull requests, as their authors see them:\n", d.stage.URL)
	for i := range pulls {
		fmt.Fprintf(d.live, "  %s/%s/pull/%d\n", d.hub.URL(), repository, i+1)
	}
	fmt.Fprintln(d.live, "Ctrl-C stops.")
	<-ctx.Done()
}

// path returns a path below the demo's directory.
func (d *demo) path(elem ...string) string {
	return filepath.Join(append([]string{d.Dir}, elem...)...)
}

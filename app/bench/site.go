package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"underwrite/app/bench/ratio"
	"underwrite/attest"
	"underwrite/handlers/freeze"
	"underwrite/runner/wire"
)

// site is a gateway's configuration and state, made by the real commands, with
// frozen repositories.
type site struct {
	dir, binary string
	profiles    map[string]attest.Profile
	frozen      map[string]*freeze.Frozen
	seq         int64
}

// The jobs, by their profiles' names.
const (
	trueJob  = "true"
	sleepJob = "sleep"
)

const siteConfig = `version: 1
deployment: bench
signer: urn:underwrite:signer:bench
key: DIR/key.pem
state: DIR/state
outbox: DIR/outbox
allowedUids: [0]
repositories: [local/*]
ceilings: {wallSeconds: 60, cpuSeconds: 60, memoryBytes: 536870912, processes: 64, workspaceBytes: 134217728, outputBytes: 65536}
capabilityLifetimeSeconds: 120
cgroupParent: /underwrite-bench-PID
profiles:
  true:
    argv: [/usr/bin/true]
    root: host
    cpus: 2
    limits: {wallSeconds: 20, cpuSeconds: 20, memoryBytes: 268435456, processes: 64, workspaceBytes: 134217728, outputBytes: 4096}
  sleep:
    argv: [/usr/bin/sleep, "2"]
    root: host
    cpus: 2
    limits: {wallSeconds: 20, cpuSeconds: 20, memoryBytes: 268435456, processes: 64, workspaceBytes: 134217728, outputBytes: 4096}
`

func newSite(ctx context.Context, dir, binary string) (*site, error) {
	s := &site{dir: dir, binary: binary, profiles: map[string]attest.Profile{}, frozen: map[string]*freeze.Frozen{}}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	text := strings.NewReplacer("DIR", dir, "PID", fmt.Sprint(os.Getpid())).Replace(siteConfig)
	if err := os.WriteFile(s.config(), []byte(text), 0o600); err != nil {
		return nil, err
	}
	if _, err := s.command(ctx, "keygen", filepath.Join(dir, "key.pem")); err != nil {
		return nil, err
	}
	if _, err := s.command(ctx, "gateway", "init", "--config", s.config()); err != nil {
		return nil, err
	}
	for _, name := range []string{trueJob, sleepJob} {
		b, err := s.command(ctx, "gateway", "profile", name, "--config", s.config())
		if err != nil {
			return nil, err
		}
		if s.profiles[name], err = attest.ParseProfile(b); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *site) config() string { return filepath.Join(s.dir, "gateway.yaml") }

func (s *site) command(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.binary, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("underwrite %v: %w\n%s", args, err, &stderr)
	}
	return out, nil
}

// freeze makes a repository with the given number of files and bytes, whose
// head changes one file of its base, and freezes it under the name.
func (s *site) freeze(ctx context.Context, name string, files, size int) error {
	repo, out := filepath.Join(s.dir, name+"-repo"), filepath.Join(s.dir, name+"-frozen")
	if err := writeFiles(repo, files, size); err != nil {
		return err
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"commit", "-q", "-m", "base"}} {
		if err := git(ctx, repo, args...); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(repo, "changed"), []byte("new\n"), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"add", "."}, {"commit", "-q", "-m", "head"}} {
		if err := git(ctx, repo, args...); err != nil {
			return err
		}
	}
	if err := os.Mkdir(out, 0o700); err != nil {
		return err
	}
	var err error
	s.frozen[name], err = freeze.Local(ctx, repo, "HEAD~1", "HEAD", "local/"+name, 1, out, freeze.DefaultLimits)
	return err
}

// writeFiles spreads files over directories of a hundred. Half of each is
// text that compresses, the other half does not.
func writeFiles(dir string, files, size int) error {
	content := make([]byte, size/files)
	for i := range files {
		sub := filepath.Join(dir, fmt.Sprintf("d%03d", i/100))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		fill(content, uint64(i))
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%02d", i%100)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		if i < len(b)/2 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			b[i] = byte(x)
		} else {
			b[i] = "the quick brown fox\n"[i%20]
		}
	}
}

func git(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Mona", "GIT_AUTHOR_EMAIL=mona@example.com", "GIT_COMMITTER_NAME=Mona", "GIT_COMMITTER_EMAIL=mona@example.com"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %v: %w\n%s", args, err, out)
	}
	return nil
}

// A timing is when the phases of one execution began, after its process.
type timing struct {
	marks []mark
	total time.Duration // to the process's exit
}

type mark struct {
	phase string
	at    time.Duration
}

// execute runs the job on a frozen repository as a gateway does, with an event
// stream, and requires a receipt.
func (s *site) execute(ctx context.Context, source, job string) (timing, error) {
	cmd, err := s.prepare(ctx, source, job)
	if err != nil {
		return timing{}, err
	}
	return s.finish(cmd, nil)
}

func (s *site) prepare(ctx context.Context, source, job string) (*exec.Cmd, error) {
	s.seq++
	frozen := s.frozen[source]
	raw, err := attest.Request{
		Version: 1, ProfileName: job, Profile: s.profiles[job], SessionID: attest.NewUUID(), Challenge: attest.NewChallenge(),
		Target: frozen.Target, Action: attest.Action{Seq: s.seq, Beat: 1, Attempt: 1},
	}.Canonical()
	if err != nil {
		return nil, err
	}
	request := filepath.Join(s.dir, "request.json")
	if err := os.WriteFile(request, raw, 0o600); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, s.binary, "execute", "--config", s.config(), "--request", request,
		"--source-bundle", frozen.BundlePath, "--evidence-dir", filepath.Join(s.dir, "outbox", fmt.Sprint("run-", s.seq)),
		"--events-fd", "3"), nil
}

// finish runs the command. watch, if not nil, is called at each phase.
func (s *site) finish(cmd *exec.Cmd, watch func(phase string, pid int)) (t timing, err error) {
	events, w, err := os.Pipe()
	if err != nil {
		return t, err
	}
	defer events.Close()
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &stdout, os.Stderr, []*os.File{w}
	start := time.Now()
	err = cmd.Start()
	w.Close()
	if err != nil {
		return t, err
	}
	readErr := wire.ReadEvents(events, func(e wire.Event) {
		if e.Phase == "" {
			return
		}
		t.marks = append(t.marks, mark{e.Phase, time.Since(start)})
		if watch != nil {
			watch(e.Phase, cmd.Process.Pid)
		}
	})
	waitErr := cmd.Wait()
	t.total = time.Since(start)
	outcome, err := wire.ParseOutcome(stdout.Bytes())
	if err == nil && outcome.Status != wire.Complete {
		err = errors.New(cmp.Or(outcome.Reason, string(outcome.Status)))
	}
	return t, errors.Join(err, waitErr, readErr)
}

type timings []timing

// print prints the median of each phase, and its share of the anchor if there
// is one. The phases run from the process's start to its exit.
func (ts timings) print(anchor float64) {
	if len(ts) == 0 {
		return
	}
	names := []string{"start"}
	for _, m := range ts[0].marks {
		names = append(names, m.phase)
	}
	spans := make([][]time.Duration, len(names))
	var totals []time.Duration
	for _, t := range ts {
		last := time.Duration(0)
		for i, m := range append(t.marks[:len(t.marks):len(t.marks)], mark{at: t.total}) {
			if i < len(spans) {
				spans[i] = append(spans[i], m.at-last)
			}
			last = m.at
		}
		totals = append(totals, t.total)
	}
	fmt.Println("  phase (median)")
	for i, name := range names {
		printSpan(os.Stdout, name, ratio.Median(spans[i]), anchor)
	}
	printSpan(os.Stdout, "total", ratio.Median(totals), anchor)
}

func printSpan(w io.Writer, name string, d time.Duration, anchor float64) {
	fmt.Fprintf(w, "    %-16s  %8.1f ms", name, millis(d))
	if anchor > 0 {
		fmt.Fprintf(w, "  %5.2f", float64(d)/anchor)
	}
	fmt.Fprintln(w)
}

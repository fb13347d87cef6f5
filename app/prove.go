package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"underwrite/app/local"
	"underwrite/runner"
	"underwrite/runner/sandbox"
)

type proveCommand struct {
	Repo        string   `required:"" type:"path" placeholder:"DIR" help:"The repository: the top of a work tree, or a bare one. It is only read."`
	Base        string   `required:"" placeholder:"REV" help:"The base revision."`
	Head        string   `required:"" placeholder:"REV" help:"The revision on whose files the job runs."`
	Profile     string   `required:"" type:"path" placeholder:"FILE" help:"The profile: what to run and its limits; - for standard input."`
	Expect      int64    `default:"0" placeholder:"N" help:"The predicted exit code, 0 to 255. Default: 0."`
	EvidenceDir string   `type:"path" placeholder:"OUT" help:"The evidence directory to make; other files appear beside it. Default: a new one in the current directory."`
	Key         string   `type:"path" placeholder:"FILE" help:"A signing key made by underwrite keygen. Default: one that is made for this run and forgotten."`
	JSON        bool     `name:"json" help:"Print one JSON object, and nothing else, on standard output."`
	Args        []string `arg:"" optional:"" name:"ARG" help:"After --: added to the profile's arguments, if it has proofArguments: true."`
}

// Help is shown with --help.
func (*proveCommand) Help() string {
	return `Runs the profile's job on the files of the head revision, in the sandbox, and verifies the signed receipt.

Example:
  underwrite profile init job.yml
  underwrite prove --repo . --base main --head HEAD --profile job.yml

Exit codes: 0 the prediction was met; 1 it was not, or the job exceeded a limit; 2 it could not be run.`
}

// Run proves. Ctrl-C ends ctx, which stops the job and removes everything.
func (c *proveCommand) Run(ctx context.Context) error {
	proof, err := c.prove(ctx)
	if err != nil {
		if c.JSON {
			err = sayJSON(&local.Proof{Verdict: local.CouldNotRun, Expected: c.Expect, Reason: err.Error()}, err)
		}
		return err
	}
	if c.JSON {
		err = sayJSON(proof, nil)
	} else {
		proof.Print(os.Stdout)
	}
	if err == nil && proof.Verdict != local.Passed {
		return &exitError{code: exitFault, err: errSaid}
	}
	return err
}

func (c *proveCommand) prove(ctx context.Context) (*local.Proof, error) {
	profile, err := local.LoadProfile(c.Profile, os.Stdin)
	if err != nil {
		return nil, err
	}
	if err := sandbox.CheckHost(); err != nil {
		return nil, err
	}
	runtime, err := newRuntime("")
	if err != nil {
		return nil, err
	}
	host, err := runner.HostOf(runtime)
	if err != nil {
		return nil, err
	}
	o := local.ProveOptions{
		Repo: c.Repo, Base: c.Base, Head: c.Head, Profile: profile, Args: c.Args, Expect: c.Expect,
		EvidenceDir: c.EvidenceDir, Key: c.Key, Execute: []string{"/proc/self/exe", "execute"}, Host: host,
	}
	if isTerminal(os.Stderr) {
		progress := &local.Progress{W: os.Stderr}
		defer progress.End()
		o.Events = progress.Event
	}
	return local.Prove(ctx, o)
}

// sayJSON prints v as the one object and returns err, or why it was not printed.
func sayJSON(v any, err error) error {
	e := json.NewEncoder(os.Stdout)
	e.SetEscapeHTML(false)
	if writeErr := e.Encode(v); writeErr != nil {
		return fmt.Errorf("print: %w", writeErr)
	}
	return err
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

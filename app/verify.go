package main

import (
	"context"
	"os"

	"underwrite/app/local"
)

type verifyCommand struct {
	EvidenceDir  string   `arg:"" type:"path" name:"EVIDENCE_DIR" help:"The directory with the six files."`
	Key          string   `required:"" type:"path" placeholder:"FILE" help:"The public key that you trust."`
	SourceBundle string   `type:"path" placeholder:"FILE" help:"The frozen source bundle. Without it the input tree is not checked."`
	Expect       string   `type:"path" placeholder:"FILE" help:"The whole expectation: the request as it was reserved (OUT.expectation.json of prove)."`
	Profile      string   `type:"path" placeholder:"FILE" help:"Expected job and sandbox: a profile, or the output of underwrite gateway profile."`
	ExitCode     int64    `default:"0" placeholder:"N" help:"The predicted exit code, with --profile. Default: 0."`
	Signer       string   `placeholder:"ID" help:"Expected signer."`
	Executor     string   `placeholder:"ID" help:"Expected executor."`
	Repo         string   `placeholder:"OWNER/NAME" help:"Expected repository."`
	PR           int64    `name:"pr" placeholder:"N" help:"Expected pull request."`
	Head         string   `placeholder:"SHA" help:"Expected head commit, all 40 digits."`
	JSON         bool     `name:"json" help:"Print one JSON object, and nothing else, on standard output."`
	Args         []string `arg:"" optional:"" name:"ARG" help:"After --, with --profile: arguments that were added to the profile's."`
}

// Help is shown with --help.
func (*verifyCommand) Help() string {
	return `Checks evidence against what you know yourself, and lists what was and what was not checked.

Example:
  underwrite verify out --key out.pub.pem --source-bundle out.source.bundle --expect out.expectation.json

A whole expectation is --expect, or all of --profile, --signer, --executor, --repo, --pr and --head.

Exit codes: 0 everything was checked and is as expected; 1 it is not; 2 it could not be checked; 3 the evidence is authentic and consistent with itself, but something was not checked.`
}

// Run verifies.
func (c *verifyCommand) Run(ctx context.Context) error {
	report, err := local.Verify(ctx, local.VerifyOptions{
		EvidenceDir: c.EvidenceDir, PublicKey: c.Key, SourceBundle: c.SourceBundle, Expect: c.Expect,
		Claims: local.Claims{
			Profile: c.Profile, ExitCode: c.ExitCode, Args: c.Args, Signer: c.Signer, Executor: c.Executor,
			Repo: c.Repo, Number: c.PR, Head: c.Head,
		},
	})
	if err != nil {
		if c.JSON {
			err = sayJSON(local.Unchecked(err), err)
		}
		return err
	}
	if c.JSON {
		err = sayJSON(report, nil)
	} else {
		report.Print(os.Stdout)
	}
	if err == nil && report.Status() != exitOK {
		return &exitError{code: report.Status(), err: errSaid}
	}
	return err
}

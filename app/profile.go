package main

import (
	"fmt"
	"os"
	"strings"

	"underwrite/app/local"
)

// profileCommand makes and checks the files that prove takes.
type profileCommand struct {
	Init  profileInitCommand  `cmd:"" help:"Write a commented profile that works as it stands."`
	Check profileCheckCommand `cmd:"" help:"Say whether a profile can be used here."`
}

type profileInitCommand struct {
	File string `arg:"" optional:"" type:"path" name:"FILE" help:"The file to make. Default: standard output."`
}

// Help is shown with --help.
func (*profileInitCommand) Help() string {
	return `Example:
  underwrite profile init job.yml`
}

// Run writes the profile, over nothing that exists.
func (c *profileInitCommand) Run() error {
	if c.File == "" || c.File == local.Stdin {
		_, err := os.Stdout.Write(local.ExampleProfile)
		return err
	}
	return local.InitProfile(c.File)
}

type profileCheckCommand struct {
	File string `arg:"" type:"path" name:"FILE" help:"The profile; - for standard input."`
}

// Help is shown with --help.
func (*profileCheckCommand) Help() string {
	return `Prints what would be run. An error names the file, the line, the field and the fix.

Example:
  underwrite profile check job.yml`
}

// Run checks.
func (c *profileCheckCommand) Run() error {
	p, err := local.LoadProfile(c.File, os.Stdin)
	if err != nil {
		return err
	}
	job, err := p.Job()
	if err != nil {
		return err
	}
	_, err = fmt.Printf("good: %s in %s, executable %s SHA-256 %s\n",
		strings.Join(job.Argv, " "), job.Cwd, job.Executable.Path, job.Executable.SHA256)
	return err
}

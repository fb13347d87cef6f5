package main

import (
	"context"
	"fmt"
	"os"

	"underwrite/app/demo"
	"underwrite/runner/sandbox"
)

type demoCommand struct {
	Dir   string `type:"path" placeholder:"DIR" help:"New directory for all files of the demo. Default: a temporary one."`
	JSON  bool   `name:"json" help:"Print one JSON object on standard output, and what happens on standard error."`
	Serve bool   `help:"Stay up after the table and print URLs to look at."`
}

// Run shows the demo; its exit code is 0 only if all four pull requests ended
// as they must.
func (c *demoCommand) Run(ctx context.Context) error {
	if err := sandbox.CheckHost(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	err = demo.Run(ctx, demo.Options{
		Self: self, Dir: c.Dir, JSON: c.JSON, Serve: c.Serve, Out: os.Stdout, Err: os.Stderr,
	})
	if err != nil {
		return &exitError{code: exitFault, err: err}
	}
	return nil
}

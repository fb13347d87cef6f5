// Command underwrite judges untrusted pull requests: it freezes them, runs pinned
// commands on them in a sealed sandbox and reports signed receipts. This package
// only parses the command line, wires the roles together and runs them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"underwrite/runner/confine"
	"underwrite/runner/sandbox/gvisor"
)

// Exit codes of every command but execute, whose codes the protocol defines.
const (
	exitOK    = 0
	exitFault = 1 // it was done, and the answer is no
	exitUsage = 2 // it could not be done
)

// cli is the command line.
type cli struct {
	Demo    demoCommand    `cmd:"" help:"Show the whole product at work on four pull requests."`
	Init    initCommand    `cmd:"" help:"Make the data directory of a controller."`
	Serve   serveCommand   `cmd:"" help:"Run the controller, which takes webhooks, has checks executed and posts check runs."`
	Gateway gatewayCommand `cmd:"" help:"Run and set up the gateway, which decides what is executed and signed."`
	Execute executeCommand `cmd:"" help:"Execute one request (started by the gateway)."`
	Prove   proveCommand   `cmd:"" help:"Run a job on two local revisions and get a verified receipt."`
	Verify  verifyCommand  `cmd:"" help:"Check evidence against what you know."`
	Export  exportCommand  `cmd:"" help:"Write a receipt in a format that other tools verify."`
	Tree    treeCommand    `cmd:"" help:"Print the tree of a directory."`
	Profile profileCommand `cmd:"" help:"Make or check a profile for prove."`
	Keygen  keygenCommand  `cmd:"" help:"Make a signing key."`
	Version versionCommand `cmd:"" help:"Print the version."`
}

// An exitError ends the program with its code after its message is printed.
type exitError struct {
	code int
	err  error
}

// errSaid stands for an error that the command has reported itself.
var errSaid = errors.New("")

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func main() {
	// These never return in a process that was started as a part of a sandbox
	// or as a confined tool.
	gvisor.MaybeExec()
	confine.MaybeExec()
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	defer stop()
	var c cli
	exited := -1
	parser, err := kong.New(&c,
		kong.Name("underwrite"),
		kong.Description("Underwrite runs pinned commands on untrusted pull requests in a sealed sandbox and signs what it measured."),
		kong.Exit(func(code int) { exited = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		return report(err)
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 { // help was printed
		return exited
	}
	if err != nil {
		return report(fmt.Errorf("%w (see underwrite --help)", err))
	}
	return report(parsed.Run())
}

// stopSignals end a command in good order. A closed terminal is one of them,
// unless whoever started the command wants it to go on (nohup).
func stopSignals() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	}
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}

// report prints an error, each of its lines with the program's name, and
// returns the exit code for it.
func report(err error) int {
	if err == nil {
		return exitOK
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{exitUsage, err}
	}
	for line := range strings.Lines(strings.TrimSpace(exit.Error())) {
		fmt.Fprintln(os.Stderr, "underwrite:", strings.TrimRight(line, "\n"))
	}
	return exit.code
}

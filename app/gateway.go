package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"underwrite/runner"
	"underwrite/runner/gateway"
	"underwrite/runner/sandbox"
	"underwrite/runner/sandbox/gvisor"
)

// gatewayCommand runs and sets up the gateway.
type gatewayCommand struct {
	Run     gatewayRunCommand     `cmd:"" help:"Listen on a Unix socket and execute the requests that the configuration accepts."`
	Init    gatewayInitCommand    `cmd:"" help:"Make the ledger and the directories that the configuration names."`
	Profile gatewayProfileCommand `cmd:"" help:"Print a profile as the controller's configuration needs it."`
}

type gatewayRunCommand struct {
	Config string `required:"" type:"path" placeholder:"FILE" help:"The gateway's configuration."`
	Socket string `required:"" type:"path" placeholder:"PATH" help:"The socket to listen on."`
}

// Run serves until it is interrupted. Its first line on standard output says
// that the socket accepts connections.
func (c *gatewayRunCommand) Run(ctx context.Context) error {
	if err := sandbox.CheckHost(); err != nil {
		return err
	}
	return gateway.Serve(ctx, gateway.Options{
		ConfigPath: c.Config,
		Socket:     c.Socket,
		Execute:    []string{"/proc/self/exe", "execute"},
		Log:        newLog(),
		Ready:      func(l net.Addr) { fmt.Println("listening on", l) },
	})
}

type gatewayInitCommand struct {
	Config string `required:"" type:"path" placeholder:"FILE" help:"The gateway's configuration."`
}

// Run makes what does not exist yet; repeating it is harmless.
func (c *gatewayInitCommand) Run(ctx context.Context) error { return runner.Init(ctx, c.Config) }

type gatewayProfileCommand struct {
	Name   string `arg:"" help:"The profile's name in the configuration."`
	Config string `required:"" type:"path" placeholder:"FILE" help:"The gateway's configuration."`
}

// Run prints the canonical trusted profile, without a final newline.
func (c *gatewayProfileCommand) Run() error {
	runtime, err := newRuntime("")
	if err != nil {
		return err
	}
	profile, err := runner.Profile(c.Config, c.Name, runtime)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(profile)
	return err
}

type executeCommand struct {
	Config       string `required:"" type:"path" placeholder:"FILE" help:"The gateway's configuration."`
	Request      string `required:"" type:"path" placeholder:"FILE" help:"The canonical request."`
	SourceBundle string `required:"" type:"path" placeholder:"FILE" help:"The frozen source bundle."`
	EvidenceDir  string `required:"" type:"path" placeholder:"DIR" help:"The evidence directory to make, in the outbox."`
	Diagnostics  string `type:"path" placeholder:"DIR" help:"Directory for signed diagnostics."`
	EventsFD     int    `name:"events-fd" placeholder:"N" help:"Inherited descriptor for the event stream."`
}

// Run executes one request. The exit codes 0, 1 and 2 and the line on standard
// output are those of the protocol; without the line, nothing is known.
func (c *executeCommand) Run(ctx context.Context) error {
	if err := sandbox.CheckHost(); err != nil {
		return err
	}
	code := runner.Execute(ctx, runner.ExecuteOptions{
		ConfigPath: c.Config, RequestPath: c.Request, BundlePath: c.SourceBundle, EvidenceDir: c.EvidenceDir,
		Diagnostics: c.Diagnostics, EventsFD: c.EventsFD, NewRuntime: newRuntime,
		Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if code == exitOK {
		return nil
	}
	return &exitError{code: code, err: errSaid}
}

type keygenCommand struct {
	Key string `arg:"" type:"path" help:"The file to make, e.g. key.pem; the public key is written beside it as key.pub.pem."`
}

// Help is shown with --help.
func (*keygenCommand) Help() string {
	return `Makes an ECDSA P-256 key pair and prints the public key's path and its id. It overwrites nothing.

Example:
  underwrite keygen key.pem`
}

// Run makes a key pair and prints what a controller's configuration needs.
func (c *keygenCommand) Run() error {
	public, id, err := runner.GenerateKey(c.Key)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n", filepath.Clean(public), id)
	return nil
}

func newRuntime(cgroupParent string) (sandbox.Runtime, error) {
	return gvisor.New(gvisor.Options{CgroupParent: cgroupParent})
}

// newLog returns the log of a resident process: JSON lines on standard error.
func newLog() zerolog.Logger {
	return zerolog.New(os.Stderr).Level(zerolog.InfoLevel).With().Timestamp().Logger()
}

// Package stage sets up the whole product in one directory: a GitHub in memory,
// and a gateway and a controller as processes of their own, made with the
// commands that an owner uses. The demo and the end-to-end tests play on it.
package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"underwrite/app/hubsim"
)

// Options say what is set up.
type Options struct {
	Self string // path of the underwrite binary
	Dir  string // existing directory for everything
	// Accounts are the owners whose repositories are served.
	Accounts    []string
	Checks      []Check
	Hub         hubsim.Options // Dir is set by New
	Concurrency int            // executions at once; 2 if 0
}

// A Check runs on the pull requests of all repositories of the accounts. Its
// profile has the same name.
type Check struct {
	Name    string
	Profile string // YAML of the gateway's profile, a flow mapping
}

// Stage is a hub with a gateway and a controller. The processes are replaced
// by restarting them; only one goroutine may do that.
type Stage struct {
	Options
	Hub        *hubsim.Hub
	Gateway    *Process
	Controller *Process
	URL        string // of the controller
}

// New makes the hub, and the keys, configuration files, ledger and database of
// gateway and controller. Nothing but the hub runs yet. Close it.
func New(ctx context.Context, o Options) (*Stage, error) {
	s := &Stage{Options: o}
	s.Concurrency = cmp.Or(s.Concurrency, 2)
	o.Hub.Dir = s.Path("github")
	var err error
	if s.Hub, err = hubsim.New(o.Hub); err != nil {
		return nil, err
	}
	for _, make := range []func(context.Context) error{
		func(context.Context) error { return s.Hub.Start() }, s.makeGateway, s.makeController,
	} {
		if err := make(ctx); err != nil {
			return nil, errors.Join(err, s.Hub.Close())
		}
	}
	return s, nil
}

// Start starts the gateway and the controller.
func (s *Stage) Start(ctx context.Context) error {
	if err := s.StartGateway(ctx); err != nil {
		return err
	}
	return s.StartController(ctx)
}

// Processes are those that run or ran.
func (s *Stage) Processes() []*Process {
	var list []*Process
	for _, p := range []*Process{s.Controller, s.Gateway} {
		if p != nil {
			list = append(list, p)
		}
	}
	return list
}

// Broken says whether one of the processes ended that should be running.
func (s *Stage) Broken() error {
	for _, p := range s.Processes() {
		select {
		case <-p.Done():
			return fmt.Errorf("%s ended: %s (see %s)", p.name, p.lastLine(), p.log)
		default:
		}
	}
	return nil
}

// WhileRunning returns a context that ends when one of the processes does.
func (s *Stage) WhileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	for _, p := range s.Processes() {
		go func() {
			defer cancel()
			select {
			case <-p.Done():
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// Close stops the processes, the controller first, and closes the hub. The
// directory stays.
func (s *Stage) Close() error {
	var errs []error
	for _, p := range s.Processes() {
		errs = append(errs, p.Stop())
	}
	return errors.Join(append(errs, s.Hub.Close())...)
}

// Path returns a path below the stage's directory.
func (s *Stage) Path(elem ...string) string {
	return filepath.Join(append([]string{s.Dir}, elem...)...)
}

func writeFile(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("set the stage: %w", err)
	}
	return nil
}

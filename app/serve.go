package main

import (
	"context"
	"fmt"
	"net"

	"underwrite/app/config"
	"underwrite/app/serve"
)

// initCommand makes the controller's data directory.
type initCommand struct {
	Config string `required:"" type:"path" placeholder:"FILE" help:"The controller's configuration."`
}

// Run makes what does not exist yet and upgrades an older database; repeating
// it is harmless.
func (c *initCommand) Run(ctx context.Context) error {
	conf, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	return serve.Init(ctx, conf.DataDir)
}

// serveCommand runs the controller.
type serveCommand struct {
	Config string `required:"" type:"path" placeholder:"FILE" help:"The controller's configuration."`
}

// Run serves until it is interrupted. Its first line on standard output says
// that webhooks are accepted.
func (c *serveCommand) Run(ctx context.Context) error {
	conf, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	return serve.Serve(ctx, conf, serve.Options{
		Log:     newLog(),
		Version: version(),
		Ready:   func(a net.Addr) { fmt.Println("listening on", a) },
	})
}

package main

import (
	"fmt"
	"runtime/debug"
)

type versionCommand struct{}

// Run prints the module's version, or the commit that it was built from.
func (versionCommand) Run() error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("this binary carries no build information")
	}
	fmt.Println("underwrite", version(), info.GoVersion)
	return nil
}

// version is the module's version and the commit, as far as they are known.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			version += " " + s.Value
		}
	}
	return version
}

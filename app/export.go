package main

import (
	"os"

	"underwrite/app/local"
)

type exportCommand struct {
	EvidenceDir string `arg:"" type:"path" name:"EVIDENCE_DIR" help:"The directory with the six files."`
	Format      string `required:"" enum:"sigstore-bundle" placeholder:"FORMAT" help:"sigstore-bundle: a Sigstore bundle v0.3, which cosign v3 verifies offline."`
	Statement   string `enum:"receipt,capability" default:"receipt" placeholder:"NAME" help:"What to export: receipt or capability. Default: receipt."`
	Output      string `type:"path" placeholder:"FILE" help:"File to make. Default: standard output."`
}

// Help is shown with --help.
func (*exportCommand) Help() string {
	return `Writes a signed statement in a format that other tools verify. Payload and signature stay as they are. Nothing is verified by this command.

Example:
  underwrite export out --format sigstore-bundle --output receipt.sigstore.json

docs/verify.md has the command of cosign for it.`
}

// Run exports.
func (c *exportCommand) Run() error {
	bundle, err := local.Export(local.ExportOptions{EvidenceDir: c.EvidenceDir, Statement: c.Statement, Output: c.Output})
	if err == nil && c.Output == "" {
		_, err = os.Stdout.Write(bundle)
	}
	return err
}

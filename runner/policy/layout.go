package policy

import "path/filepath"

// LedgerPath is the replay ledger's file in the state directory.
func (c *Config) LedgerPath() string { return filepath.Join(c.State, "ledger.db") }

// LocksDir holds one lock file for each execution that is under way.
func (c *Config) LocksDir() string { return filepath.Join(c.State, "locks") }

// ScratchDir holds one directory for each execution that is under way, called
// by its replay key.
func (c *Config) ScratchDir() string { return filepath.Join(c.State, "scratch") }

// ResultsDir holds the stored files of each complete execution, in a directory
// called by its replay key.
func (c *Config) ResultsDir() string { return filepath.Join(c.State, "results") }

// SpoolDir is where the resident gateway puts what it receives.
func (c *Config) SpoolDir() string { return filepath.Join(c.State, "spool") }

// ProgramPath is where executions remember the digest of their own program.
func (c *Config) ProgramPath() string { return filepath.Join(c.State, "program.json") }

// GID is the consumer's group, or -1 if there is none.
func (c *Config) GID() int {
	if c.ConsumerGID == nil {
		return -1
	}
	return *c.ConsumerGID
}

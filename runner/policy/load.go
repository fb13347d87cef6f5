package policy

import (
	"fmt"

	"underwrite/runner/internal/hostpath"
)

// Load reads and checks the configuration file. An error names the file, the
// line, the field and the fix.
func Load(path string) (*Config, error) {
	b, err := hostpath.ReadFile(path, MaxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c, err := parse(path, b)
	if err != nil {
		return nil, err
	}
	return c, document{ErrConfig, path, b}.locate(c.checkExecutables())
}

// parse reads the configuration without looking at any other file.
func parse(path string, b []byte) (*Config, error) {
	c, d := &Config{path: path}, document{ErrConfig, path, b}
	if err := d.decode(c); err != nil {
		return nil, err
	}
	c.setDefaults()
	return c, d.locate(c.check())
}

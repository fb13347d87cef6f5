package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

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
	return c, c.locate(b, c.checkExecutables())
}

// parse reads the configuration without looking at any other file.
func parse(path string, b []byte) (*Config, error) {
	c := &Config{path: path}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil {
		return nil, syntax(path, err)
	}
	var more yaml.Node
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w %s:%d: more than one document: keep one", ErrConfig, path, max(more.Line, 1))
	}
	c.setDefaults()
	return c, c.locate(b, c.check())
}

var (
	yamlLine    = regexp.MustCompile(`line (\d+): ([^\n]*)`)
	yamlUnknown = regexp.MustCompile(`^field (\S+) not found in type \S+$`)
)

// syntax rewrites the YAML package's error to name file and line first.
func syntax(path string, err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w %s:1: the file is empty", ErrConfig, path)
	}
	m := yamlLine.FindStringSubmatch(err.Error())
	if m == nil {
		return fmt.Errorf("%w %s: %s", ErrConfig, path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	text := m[2]
	if u := yamlUnknown.FindStringSubmatch(text); u != nil {
		text = u[1] + ": unknown field: remove it or correct its name"
	}
	return fmt.Errorf("%w %s:%s: %s", ErrConfig, path, m[1], text)
}

// locate adds file and line to a problem.
func (c *Config) locate(b []byte, err error) error {
	var p *problem
	if !errors.As(err, &p) {
		return err
	}
	line := 1
	var doc yaml.Node
	if yaml.Unmarshal(b, &doc) == nil && len(doc.Content) == 1 {
		line = lineOf(doc.Content[0], strings.Split(p.field, "."), 1)
	}
	return fmt.Errorf("%w %s:%d: %w", ErrConfig, c.path, line, err)
}

// lineOf finds the line of the field, or of its innermost parent that is there.
func lineOf(n *yaml.Node, field []string, parent int) int {
	if i, err := strconv.Atoi(field[0]); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
		return n.Content[i].Line
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if key := n.Content[i]; key.Value == field[0] {
			if len(field) == 1 {
				return key.Line
			}
			return lineOf(n.Content[i+1], field[1:], key.Line)
		}
	}
	return parent
}

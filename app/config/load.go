package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ErrConfig: the configuration is wrong. The message has one line for each
// problem, with file, line, field and fix.
var ErrConfig = errors.New("configuration is wrong")

// Load reads and checks the configuration file. It reads no other file.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return Parse(path, b)
}

// Parse checks the content of the configuration file at path.
func Parse(path string, b []byte) (*Config, error) {
	if len(b) > MaxFileBytes {
		return nil, fmt.Errorf("%w: %s: more than %d bytes", ErrConfig, path, MaxFileBytes)
	}
	c := &Config{path: path}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil {
		return nil, syntax(path, err)
	}
	var more yaml.Node
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s:%d: something after the document: keep one document", ErrConfig, path, max(more.Line, 1))
	}
	c.setDefaults()
	var p problems
	c.check(&p)
	return c, p.located(path, b)
}

// Complete fills in the defaults of a configuration made by a program, and
// checks it.
func (c *Config) Complete() error {
	c.setDefaults()
	var p problems
	c.check(&p)
	return p.located("configuration", nil)
}

var (
	yamlLine    = regexp.MustCompile(`line (\d+): ([^\n]*)`)
	yamlUnknown = regexp.MustCompile(`^field (\S+) not found in type \S+$`)
)

// syntax rewrites the YAML package's error: file and line first, no Go types.
func syntax(path string, err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %s:1: the file is empty: see deploy/config.example.yml", ErrConfig, path)
	}
	found := yamlLine.FindAllStringSubmatch(err.Error(), -1)
	if len(found) == 0 {
		return fmt.Errorf("%w: %s: %s", ErrConfig, path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var lines []string
	for _, m := range found {
		text := m[2]
		if u := yamlUnknown.FindStringSubmatch(text); u != nil {
			text = u[1] + ": unknown field: remove it or correct its name"
		}
		lines = append(lines, fmt.Sprintf("%s:%s: %s", path, m[1], text))
	}
	return fmt.Errorf("%w: %s", ErrConfig, strings.Join(lines, "\n"))
}

// problems collects what is wrong, by field such as "checks.0.name".
type problems []struct{ field, text string }

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, struct{ field, text string }{field, fmt.Sprintf(format, args...)})
}

// located is nil if there are none.
func (p problems) located(path string, b []byte) error {
	if len(p) == 0 {
		return nil
	}
	var doc yaml.Node
	var root *yaml.Node
	if yaml.Unmarshal(b, &doc) == nil && len(doc.Content) == 1 {
		root = doc.Content[0]
	}
	var lines []string
	for _, one := range p {
		line, column := 1, 1
		if root != nil {
			line, column = position(root, strings.Split(one.field, "."), root)
		}
		lines = append(lines, fmt.Sprintf("%s:%d:%d: %s: %s", path, line, column, one.field, one.text))
	}
	return fmt.Errorf("%w: %s", ErrConfig, strings.Join(lines, "\n"))
}

// position finds the field, or its innermost parent that is there.
func position(n *yaml.Node, field []string, parent *yaml.Node) (line, column int) {
	if len(field) == 0 {
		return parent.Line, parent.Column
	}
	if i, err := strconv.Atoi(field[0]); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
		return position(n.Content[i], field[1:], n.Content[i])
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field[0] {
			return position(n.Content[i+1], field[1:], n.Content[i])
		}
	}
	return parent.Line, parent.Column
}

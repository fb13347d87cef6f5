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
)

// A document is a YAML file that is being read. Its errors name the file, the
// line, the field and the fix.
type document struct {
	kind error // ErrConfig or ErrProfile
	path string
	text []byte
}

// decode reads the file's only document into v, whose type names every field.
func (d document) decode(v any) error {
	dec := yaml.NewDecoder(bytes.NewReader(d.text))
	dec.KnownFields(true)
	if err := dec.Decode(v); err != nil {
		return d.syntax(err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return d.at(max(more.Line, 1), "more than one document: keep one")
	}
	if n, field := fraction(d.root()); n != nil {
		return d.at(n.Line, fmt.Sprintf("%s: %s is of the wrong type: want digits only, or text in quotes", field, n.Value))
	}
	return nil
}

// fraction finds a number that the YAML package would cut down to a whole one.
// What stands in lists and in environments is text.
func fraction(n *yaml.Node) (found *yaml.Node, field string) {
	for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i].Value, n.Content[i+1]
		if value.Kind == yaml.ScalarNode && value.ShortTag() == "!!float" {
			return value, name
		}
		if name == "environment" {
			continue
		}
		if found, field = fraction(value); found != nil {
			return found, name + "." + field
		}
	}
	return nil, ""
}

func (d document) at(line int, text string) error {
	return fmt.Errorf("%w %s:%d: %s", d.kind, d.path, line, text)
}

var (
	yamlLine    = regexp.MustCompile(`line (\d+): ([^\n]*)`)
	yamlUnknown = regexp.MustCompile(`^field (\S+) not found in type \S+$`)
	yamlTwice   = regexp.MustCompile(`^mapping key "(.*)" already defined at line (\d+)$`)
	yamlType    = regexp.MustCompile("^cannot unmarshal !!\\w+(?: `(.*)`)? into (\\S+)$")
)

// syntax rewrites the YAML package's error to name file and line first.
func (d document) syntax(err error) error {
	if errors.Is(err, io.EOF) {
		return d.at(1, "the file is empty")
	}
	m := yamlLine.FindStringSubmatch(err.Error())
	if m == nil {
		return fmt.Errorf("%w %s: this is not YAML: %s", d.kind, d.path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	line, convErr := strconv.Atoi(m[1])
	if convErr != nil {
		line = 1
	}
	if strings.HasPrefix(m[2], "did not find expected") {
		line++ // the YAML package counts its parser's lines from 0
	}
	return d.at(line, d.explain(line, m[2]))
}

// explain says the YAML package's message in the words of the file.
func (d document) explain(line int, text string) string {
	if m := yamlUnknown.FindStringSubmatch(text); m != nil {
		return m[1] + ": unknown field: remove it or correct its name"
	}
	if m := yamlTwice.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s: is already given on line %s: keep one of them", m[1], m[2])
	}
	if m := yamlType.FindStringSubmatch(text); m != nil {
		what := "this"
		if m[1] != "" {
			what = strconv.Quote(m[1])
		}
		if field := fieldAt(d.root(), line, m[1]); field != "" {
			what = field + ": " + what
		}
		return fmt.Sprintf("%s is of the wrong type: want %s", what, wanted(m[2]))
	}
	return "this is not YAML: " + text
}

// wanted describes a Go type to whoever writes the file.
func wanted(goType string) string {
	switch {
	case strings.HasPrefix(goType, "int"):
		return "a whole number"
	case goType == "string":
		return "text"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	default:
		return "fields with values"
	}
}

// root is the document's top node, nil if the text is not YAML.
func (d document) root() *yaml.Node {
	var doc yaml.Node
	if yaml.Unmarshal(d.text, &doc) != nil || len(doc.Content) != 1 {
		return nil
	}
	return doc.Content[0]
}

// fieldAt returns the dotted name of the field that has this value on this
// line. Of a longer value, value is the beginning and "...".
func fieldAt(n *yaml.Node, line int, value string) string {
	if n == nil || n.Kind == yaml.ScalarNode {
		return ""
	}
	step := 1
	if n.Kind == yaml.MappingNode {
		step = 2
	}
	for i := 0; i+step <= len(n.Content); i += step {
		name, child := strconv.Itoa(i), n.Content[i+step-1]
		if step == 2 {
			name = n.Content[i].Value
		}
		if isValue(child, line, value) {
			return name
		}
		if inner := fieldAt(child, line, value); inner != "" {
			return name + "." + inner
		}
	}
	return ""
}

func isValue(n *yaml.Node, line int, value string) bool {
	if n.Line != line || (n.Kind == yaml.ScalarNode) != (value != "") {
		return false
	}
	start, cut := strings.CutSuffix(value, "...")
	return n.Value == value || cut && strings.HasPrefix(n.Value, start)
}

// locate adds file and line to a problem.
func (d document) locate(err error) error {
	var p *problem
	if !errors.As(err, &p) {
		return err
	}
	line := 1
	if root := d.root(); root != nil {
		line = lineOf(root, strings.Split(p.field, "."), 1)
	}
	return fmt.Errorf("%w %s:%d: %w", d.kind, d.path, line, err)
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

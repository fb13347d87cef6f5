package apptest_test

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// protocolVariable names a file with the protocol's text. With it the list of
// sentences below is compared with the text.
const protocolVariable = "UNDERWRITE_PROTOCOL"

// sentences are the protocol's MUST, MUST NOT and REQUIRED, in the order of the
// text and numbered in their section, each with a few words of it. Those that
// introduce a list (ART-1 and ART-2) have its items behind a point.
var sentences = [][2]string{
	{"SEC-1", "signing operation MUST remain outside"},
	{"SEC-2", "processes MUST NOT read key material"},
	{"SEC-3", "tuples likewise MUST come from"},
	{"JSON-1", "MUST first pass its schema"},
	{"JSON-2", "MUST produce the same UTF-8 bytes"},
	{"JSON-3", "MUST reject duplicate object keys"},
	{"JSON-4", "MUST contain exactly the listed fields"},
	{"JSON-5", "MUST use lowercase ASCII"},
	{"JSON-6", "MUST NOT be JSON booleans"},
	{"JSON-7", "MUST end in Z"},
	{"DSSE-1", "MUST contain payloadType"},
	{"DSSE-2", "MUST contain exactly one signature"},
	{"DSSE-3", "MUST accept both canonical padded forms"},
	{"DSSE-4", "MUST construct PAE"},
	{"DSSE-5", "MUST be retained and passed"},
	{"DSSE-6", "MUST NOT decode the envelope a second"},
	{"DSSE-7", "MUST NOT establish signer identity"},
	{"STMT-1", "are REQUIRED and exact"},
	{"REPLAY-1", "challenge MUST NOT be reused"},
	{"REPLAY-2", "MUST reserve this tuple"},
	{"REPLAY-3", "is a conflict and MUST be rejected"},
	{"TARGET-1", "MUST compare the received document"},
	{"TARGET-2", "MUST NOT accept a digest as"},
	{"TARGET-3", "MUST equal target.document.object_bundle"},
	{"JOB-1", "MUST NOT invoke a shell"},
	{"JOB-2", "MUST equal job.executable.path"},
	{"JOB-3", "MUST remain inside the isolated"},
	{"JOB-4", "MUST start from an empty environment"},
	{"JOB-5", "MUST verify and pin"},
	{"JOB-6", "MUST come from the trusted host image"},
	{"BOX-1", "MUST own the isolated workspace"},
	{"TREE-1", "MUST use a descriptor-relative"},
	{"TREE-2", "MUST include every entry"},
	{"TREE-3", "MUST not be present in the workspace"},
	{"TREE-4", "MUST reject a file that changes"},
	{"CAP-1", "policy MUST allow the exact signer"},
	{"CAP-2", "MUST start no earlier than issuedAt"},
	{"CAP-3", "MUST equal invocation.inputTree"},
	{"RCPT-1", "MUST be structurally equal"},
	{"RCPT-2", "MUST NOT produce a conforming"},
	{"RCPT-3", "MUST NOT exceed invocation.sandbox"},
	{"RCPT-4", "and MUST equal outputTree.gitTree"},
	{"RCPT-5", "MUST equal both outputTree.gitTree"},
	{"ART-1", "the gateway integration MUST:"},
	{"ART-1.1", "SHA-256 against sourceBundle"},
	{"ART-1.2", "against the frozen target's"},
	{"ART-1.3", "new bare quarantine repository"},
	{"ART-1.4", "to resolve to the frozen"},
	{"ART-1.5", "Materialize the head without"},
	{"ART-2", "For the output bundle it MUST:"},
	{"ART-2.1", "SHA-256 against outputBundle"},
	{"ART-2.2", "into a fresh quarantine repository"},
	{"ART-2.3", "Resolve its declared output ref"},
	{"ART-2.4", "Require that tree to equal"},
	{"ART-2.5", "Reject missing objects"},
	{"ART-3", "MUST define the single output ref"},
	{"ART-4", "MUST NOT infer them from"},
	{"ART-5", "MUST also hash the exact stdout"},
	{"TRANS-1", "MUST remain outside this directory"},
	{"TRANS-2", "MUST NOT trust the gateway's stored"},
	{"VAL-1", "MUST establish that the exact signerId"},
	{"VAL-2", "MUST have the same trusted signer"},
	{"VAL-3", "MUST NOT be selected from"},
	{"LINK-1", "MUST bind an approving actor"},
	{"LINK-2", "MUST equal the signed output tree"},
	{"LINK-3", "MUST exclude concurrent repository"},
	{"LINK-4", "MUST reside on private local"},
	{"LINK-5", "MUST be unable to replace or modify"},
}

// claim is a row of docs/claims.md.
type claim struct {
	id, words string
	done      bool
	code      []string // package.Symbol, package.Type.Method or a file
	tests     []string // package.Test or package.Test/sub-test
	reason    string   // of a row that is not done
}

// TestClaims holds docs/claims.md to the protocol's sentences and to this
// repository: every sentence has its row, every row its code and its tests.
func TestClaims(t *testing.T) {
	rows, err := readClaims(string(readFile(t, "../../docs/claims.md")))
	must(t, err)
	for _, problem := range checkClaims(rows, sentences, &sources{root: "../.."}) {
		t.Error(problem)
	}
	if path := os.Getenv(protocolVariable); path != "" {
		for _, problem := range checkText(string(readFile(t, path)), sentences) {
			t.Error(problem)
		}
	}
}

// readClaims reads the two kinds of tables: with four columns under any
// heading, and with three under "Not done".
func readClaims(text string) ([]claim, error) {
	var rows []claim
	done := true
	for number, line := range strings.Split(text, "\n") {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			done = heading != "Not done"
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| id ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		c := claim{id: cells[0], done: done}
		switch {
		case done && len(cells) == 4:
			c.words, c.code, c.tests = cells[1], quoted(cells[2]), quoted(cells[3])
		case !done && len(cells) == 3:
			c.words, c.reason = cells[1], cells[2]
		default:
			return nil, fmt.Errorf("docs/claims.md:%d: a row of %d cells", number+1, len(cells))
		}
		rows = append(rows, c)
	}
	return rows, nil
}

var inBackquotes = regexp.MustCompile("`([^`]+)`")

func quoted(cell string) (names []string) {
	for _, m := range inBackquotes.FindAllStringSubmatch(cell, -1) {
		names = append(names, m[1])
	}
	return names
}

// checkClaims returns what is wrong.
func checkClaims(rows []claim, sentences [][2]string, s *sources) (problems []string) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	seen := map[string]claim{}
	for _, c := range rows {
		if _, twice := seen[c.id]; twice {
			report("%s has two rows", c.id)
		}
		seen[c.id] = c
		if !c.done {
			if len(c.reason) < len("a reason") {
				report("%s is not done without a reason", c.id)
			}
			continue
		}
		if len(c.code) == 0 || len(c.tests) == 0 {
			report("%s names no code or no test", c.id)
		}
		for _, name := range c.code {
			if err := s.checkCode(name); err != nil {
				report("%s: code %s: %v", c.id, name, err)
			}
		}
		for _, name := range c.tests {
			if err := s.checkTest(name); err != nil {
				report("%s: test %s: %v", c.id, name, err)
			}
		}
	}
	for _, sentence := range sentences {
		if c, ok := seen[sentence[0]]; !ok {
			report("%s (%s) has no row", sentence[0], sentence[1])
		} else if !strings.Contains(c.words, sentence[1]) {
			report("%s: the row says %q, the sentence %q", c.id, c.words, sentence[1])
		}
	}
	return problems
}

var (
	requirement = regexp.MustCompile(`\bMUST\b|\bREQUIRED\b|\bSHALL\b`)
	listItem    = regexp.MustCompile(`^\w+-\d+\.\d+$`)
)

// checkText compares the list with the protocol's text. The paragraph that
// explains the key words is no requirement.
func checkText(text string, sentences [][2]string) (problems []string) {
	at := 0
	for _, s := range sentences {
		i := strings.Index(text[at:], s[1])
		if i < 0 {
			problems = append(problems, fmt.Sprintf("%s: the text has no %q after %q", s[0], s[1], clipEnd(text[:at])))
			continue
		}
		at += i + len(s[1])
	}
	for _, sentence := range regexp.MustCompile(`[.:](\s+|$)`).Split(text, -1) {
		if !requirement.MatchString(sentence) || strings.Contains(sentence, "RFC 2119") {
			continue
		}
		if !slices.ContainsFunc(sentences, func(s [2]string) bool {
			return !listItem.MatchString(s[0]) && strings.Contains(sentence, strings.TrimRight(s[1], ":"))
		}) {
			problems = append(problems, fmt.Sprintf("the list lacks %q", sentence))
		}
	}
	return problems
}

func clipEnd(s string) string { return s[max(0, len(s)-40):] }

// sources parses this module's packages, each once.
type sources struct {
	root   string
	parsed map[string]*parsedPackage
}

type parsedPackage struct {
	symbols map[string]bool     // Symbol and Type.Method of the code
	decls   map[string]ast.Node // top-level declarations of the tests
}

var errNone = errors.New("there is none")

// split cuts "app/evidence.Read" into the package's directory and the rest.
func split(name string) (dir, rest string) {
	slash := strings.LastIndexByte(name, '/')
	dot := strings.IndexByte(name[slash+1:], '.')
	if dot < 0 {
		return name, ""
	}
	return name[:slash+1+dot], name[slash+2+dot:]
}

func (s *sources) checkCode(name string) error {
	if filepath.Ext(name) != "" && !strings.ContainsAny(filepath.Base(name), " ") {
		if info, err := os.Stat(filepath.Join(s.root, name)); err == nil && info.Mode().IsRegular() {
			return nil
		}
	}
	dir, symbol := split(name)
	p, err := s.load(dir)
	if err != nil {
		return err
	}
	if !p.symbols[symbol] {
		return errNone
	}
	return nil
}

func (s *sources) checkTest(name string) error {
	name, sub, hasSub := cutSubtest(name)
	dir, function := split(name)
	p, err := s.load(dir)
	if err != nil {
		return err
	}
	if f, ok := p.decls[function].(*ast.FuncDecl); !ok || f.Recv != nil || !strings.HasPrefix(function, "Test") && !strings.HasPrefix(function, "Fuzz") {
		return errNone
	}
	if !hasSub || p.literals(function)[sub] {
		return nil
	}
	if file, vector, ok := strings.Cut(sub, "/"); ok && p.literals(function)[file] {
		return s.checkVector(file, vector)
	}
	return fmt.Errorf("no sub-test %q", sub)
}

// cutSubtest cuts at the first slash after the test's own name.
func cutSubtest(name string) (test, sub string, found bool) {
	at := max(strings.Index(name, ".Test"), strings.Index(name, ".Fuzz"))
	if at < 0 {
		return name, "", false
	}
	test, sub, found = strings.Cut(name[at:], "/")
	return name[:at] + test, sub, found
}

// checkVector looks a conformance vector up by its name.
func (s *sources) checkVector(file, name string) error {
	f, err := os.Open(filepath.Join(s.root, "testdata/vectors", file+".json.gz"))
	if err != nil {
		return err
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	var cases []struct{ Name string }
	if err := json.NewDecoder(unpacked).Decode(&cases); err != nil {
		return err
	}
	for _, c := range cases {
		if c.Name == name {
			return nil
		}
	}
	return fmt.Errorf("no vector %q in %s", name, file)
}

// load parses the files of a package that a plain `go test` builds here.
func (s *sources) load(dir string) (*parsedPackage, error) {
	if p := s.parsed[dir]; p != nil {
		return p, nil
	}
	names, err := filepath.Glob(filepath.Join(s.root, dir, "*.go"))
	if err != nil || len(names) == 0 {
		return nil, cmp.Or(err, fmt.Errorf("no package %s", dir))
	}
	p := &parsedPackage{symbols: map[string]bool{}, decls: map[string]ast.Node{}}
	for _, name := range names {
		if built, err := build.Default.MatchFile(filepath.Split(name)); err != nil || !built {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return nil, err
		}
		p.add(file, strings.HasSuffix(name, "_test.go"))
	}
	if s.parsed == nil {
		s.parsed = map[string]*parsedPackage{}
	}
	s.parsed[dir] = p
	return p, nil
}

func (p *parsedPackage) add(file *ast.File, test bool) {
	add := func(name string, node ast.Node) {
		if test {
			p.decls[name] = node
		} else {
			p.symbols[name] = true
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(methodName(d), d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name.Name, spec)
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						add(n.Name, spec)
					}
				}
			}
		}
	}
}

func methodName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

// literals are the texts in a test and in the tables and helpers that it
// mentions, directly or not: a sub-test's name is one of them.
func (p *parsedPackage) literals(function string) map[string]bool {
	texts, visited := map[string]bool{}, map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		node := p.decls[name]
		if node == nil || visited[name] {
			return
		}
		visited[name] = true
		ast.Inspect(node, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					texts[text] = true
				}
			case *ast.Ident:
				visit(n.Name)
			}
			return true
		})
	}
	visit(function)
	return texts
}

// TestClaimsCanFail shows that each kind of mistake in docs/claims.md is found.
func TestClaimsCanFail(t *testing.T) {
	const header = "# Claims\n\n| id | sentence | code | tests |\n|---|---|---|---|\n"
	list := [][2]string{{"A-1", "some words"}}
	good := "| A-1 | some words | `attest.PAE` `attest.Envelope.Encode` `attest/envelope.go` | `attest.TestPAEVectors` `attest.TestVerifyReceiptClaims/other key` `attest.TestBase64Vectors/base64/mixed-1` |\n"
	for _, c := range []struct{ name, text, want string }{
		{"good", good, ""},
		{"not done", "\n## Not done\n\n| A-1 | some words | there is no code |\n", ""},
		{"no row", "", "A-1 (some words) has no row"},
		{"two rows", good + good, "two rows"},
		{"other words", strings.Replace(good, "some words", "else", 1), "the row says"},
		{"missing function", strings.Replace(good, "attest.PAE", "attest.Pae", 1), "attest.Pae: there is none"},
		{"missing method", strings.Replace(good, "Envelope.Encode", "Envelope.Decode", 1), "there is none"},
		{"missing file", strings.Replace(good, "envelope.go", "envelopes.go", 1), "code attest/envelopes.go"},
		{"missing package", strings.Replace(good, "attest.PAE", "attests.PAE", 1), "no package attests"},
		{"missing test", strings.Replace(good, "TestPAEVectors", "TestPAEVector", 1), "there is none"},
		{"test of another package", strings.Replace(good, "attest.TestPAEVectors", "attest/gittree.TestPAEVectors", 1), "there is none"},
		{"helper instead of a test", strings.Replace(good, "TestPAEVectors", "newKey", 1), "there is none"},
		{"missing sub-test", strings.Replace(good, "other key", "another key", 1), `no sub-test "another key"`},
		{"missing vector", strings.Replace(good, "mixed-1", "mixed-9", 1), `no vector "mixed-9"`},
		{"sub-test of another test", strings.Replace(good, "TestPAEVectors", "TestPAEVectors/other key", 1), "no sub-test"},
		{"no test", "| A-1 | some words | `attest.PAE` | none |\n", "no code or no test"},
		{"no code", "| A-1 | some words | none | `attest.TestPAEVectors` |\n", "no code or no test"},
		{"not done without a reason", "\n## Not done\n\n| A-1 | some words | - |\n", "without a reason"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows, err := readClaims(header + c.text)
			must(t, err)
			problems := strings.Join(checkClaims(rows, list, &sources{root: "../.."}), "\n")
			if c.want == "" && problems != "" || !strings.Contains(problems, c.want) {
				t.Errorf("found %q, want %q", problems, c.want)
			}
		})
	}
	if _, err := readClaims(header + "| A-1 | some words |\n"); err == nil {
		t.Error("a row of two cells was read")
	}
	text := "It MUST hold some words. Another one MUST be listed. See RFC 2119 for MUST."
	if problems := checkText(text, list); len(problems) != 1 || !strings.Contains(problems[0], "Another one") {
		t.Errorf("found %q in the text", problems)
	}
}

package local

import (
	"fmt"
	"io"
	"strings"

	"underwrite/handlers/checks"
)

// Print writes the proof for people.
func (p *Proof) Print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", p.Verdict, checks.Visible(p.Reason, false))
	if p.Verdict != Passed {
		printTail(w, "stdout", p.Stdout)
		printTail(w, "stderr", p.Stderr)
	}
	for _, line := range []struct{ name, value string }{
		{"base", p.Base}, {"head", p.Head}, {"input tree", p.InputTree}, {"output tree", p.OutputTree},
		{"receipt", p.ReceiptSHA256}, {"key", p.KeyID}, {"evidence", p.EvidenceDir}, {"public key", p.PublicKey},
		{"source", p.SourceBundle}, {"expectation", p.Expectation}, {"diagnostic", p.Diagnostic},
	} {
		if line.value != "" {
			fmt.Fprintf(w, "  %-12s %s\n", line.name, line.value)
		}
	}
	if p.Verdict != Faulted {
		fmt.Fprintf(w, "verify again: underwrite verify %s --key %s --source-bundle %s --expect %s\n",
			shellWord(p.EvidenceDir), shellWord(p.PublicKey), shellWord(p.SourceBundle), shellWord(p.Expectation))
	}
}

const tailLines = 15 // of each stream

// printTail shows the end of a stream, without letting it touch the terminal.
func printTail(w io.Writer, name string, tail []byte) {
	text := strings.TrimRight(string(tail), "\n")
	if text == "" {
		return
	}
	lines := strings.Split(text, "\n")
	fmt.Fprintf(w, "  the end of %s:\n", name)
	for _, line := range lines[max(0, len(lines)-tailLines):] {
		fmt.Fprintf(w, "    | %s\n", checks.Visible(line, false))
	}
}

// shellWord quotes a path for a shell where it needs that.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:,@", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", r.Verdict, checks.Visible(r.Reason, false))
	for _, s := range r.Checked {
		mark := "checked"
		if !s.OK {
			mark = "FAILED"
		}
		fmt.Fprintf(w, "  %-11s  %s: %s\n", mark, s.Name, checks.Visible(s.Detail, false))
	}
	for _, o := range r.NotChecked {
		fmt.Fprintf(w, "  not checked  %s: %s\n", o.Name, o.Remedy)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "  note         %s\n", note)
	}
}

package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report is what the demo prints with --json.
type Report struct {
	PullRequests []Result `json:"pull_requests"`
}

// Result is how one pull request ended. Without a receipt, ReceiptSHA256 and
// EvidenceDir are empty.
type Result struct {
	Number        int64   `json:"number"`
	Check         string  `json:"check"`
	Conclusion    string  `json:"conclusion"`
	Reason        string  `json:"reason"`         // the check run's title
	ReceiptSHA256 string  `json:"receipt_sha256"` // of the receipt envelope
	EvidenceDir   string  `json:"evidence_dir"`   // the six files, and what is needed to verify them
	Seconds       float64 `json:"seconds"`        // from opening the pull request to the completed check run
}

// JSON writes the report as one object.
func (r Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// Table writes the report for people.
func (r Report) Table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PR\tCHECK\tCONCLUSION\tREASON\tRECEIPT\tSECONDS")
	for _, p := range r.PullRequests {
		receipt := "none"
		if p.ReceiptSHA256 != "" {
			receipt = p.ReceiptSHA256[:16] + "…"
		}
		fmt.Fprintf(tw, "#%d\t%s\t%s\t%s\t%s\t%.1f\n", p.Number, p.Check, p.Conclusion, p.Reason, receipt, p.Seconds)
	}
	return tw.Flush()
}

// Check returns what did not end as it must, nil if everything did.
func (r Report) Check() error {
	var wrong []string
	for i, want := range pulls {
		if i >= len(r.PullRequests) {
			wrong = append(wrong, fmt.Sprintf("pull request %d has no result", i+1))
			continue
		}
		wrong = append(wrong, mismatches(r.PullRequests[i], want)...)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the demo did not end as it must: %s", strings.Join(wrong, "; "))
	}
	return nil
}

func mismatches(got Result, want pull) []string {
	var wrong []string
	if got.Conclusion != want.conclusion {
		wrong = append(wrong, fmt.Sprintf("#%d concluded %q, not %q", got.Number, got.Conclusion, want.conclusion))
	}
	if !strings.HasPrefix(got.Reason, want.titleStart) {
		wrong = append(wrong, fmt.Sprintf("#%d says %q, not %q", got.Number, got.Reason, want.titleStart))
	}
	if has := got.ReceiptSHA256 != ""; has != want.receipt {
		wrong = append(wrong, fmt.Sprintf("#%d has a receipt: %v, must be %v", got.Number, has, want.receipt))
	}
	return wrong
}

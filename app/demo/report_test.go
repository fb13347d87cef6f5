package demo

import (
	"bytes"
	"strings"
	"testing"
)

func ended() Report {
	digest := strings.Repeat("a1", 32)
	return Report{PullRequests: []Result{
		{Number: 1, Check: "underwrite/tests", Conclusion: "success", Reason: "passed", ReceiptSHA256: digest},
		{Number: 2, Check: "underwrite/tests", Conclusion: "failure", Reason: "exit 1, expected 0", ReceiptSHA256: digest},
		{Number: 3, Check: "underwrite/tests", Conclusion: "failure", Reason: "exit 1, expected 0", ReceiptSHA256: digest},
		{Number: 4, Check: "underwrite/tests", Conclusion: "timed_out", Reason: "timed out after 20 s"},
	}}
}

func TestCheckNeedsEveryEnding(t *testing.T) {
	if err := ended().Check(); err != nil {
		t.Fatalf("the right endings are refused: %v", err)
	}
	for name, spoil := range map[string]func(*Report){
		"conclusion":      func(r *Report) { r.PullRequests[2].Conclusion = "success" },
		"reason":          func(r *Report) { r.PullRequests[1].Reason = "exit 4, expected 0" },
		"receipt missing": func(r *Report) { r.PullRequests[0].ReceiptSHA256 = "" },
		"receipt of a timeout": func(r *Report) {
			r.PullRequests[3].ReceiptSHA256 = r.PullRequests[0].ReceiptSHA256
		},
		"result missing": func(r *Report) { r.PullRequests = r.PullRequests[:3] },
	} {
		t.Run(name, func(t *testing.T) {
			r := ended()
			spoil(&r)
			if r.Check() == nil {
				t.Fatal("a wrong ending is accepted")
			}
		})
	}
}

func TestTableShowsEveryPullRequest(t *testing.T) {
	var b bytes.Buffer
	if err := ended().Table(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#1", "#4", "timed_out", "none", "a1a1a1a1a1a1a1a1…"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &b)
		}
	}
}

func TestFilesAreReplaced(t *testing.T) {
	got, err := files("pulls/curious", map[string]string{"PORT": "4711", "MARKER": "/marker"})
	if err != nil {
		t.Fatal(err)
	}
	text := got["tests/test_curious.py"]
	if !strings.Contains(text, `("127.0.0.1", 4711)`) || strings.Contains(text, "@MARKER@") {
		t.Errorf("the placeholder was not replaced:\n%s", text)
	}
}

package wire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// listen serves one connection after the other with serve.
func listen(t *testing.T, serve func(net.Conn)) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "gateway.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	return &Client{Socket: socket}
}

func bundle(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pr.bundle")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExecuteSendsExactBytes(t *testing.T) {
	want := Outcome{Version: 1, Status: Complete, EvidenceDir: "/out/box"}
	got := make(chan string, 1)
	c := listen(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		h, err := ReadHeader(r)
		if err != nil {
			t.Error(err)
			return
		}
		body := make([]byte, h.RequestBytes+h.BundleBytes)
		if _, err := io.ReadFull(r, body); err != nil {
			t.Error(err)
		}
		got <- string(body)
		WriteReply(conn, Reply{Event: &Event{Phase: PhaseRun}})
		WriteReply(conn, Reply{Event: &Event{Stdout: []byte("\xffhi\n")}})
		WriteReply(conn, Reply{Outcome: &want})
	})
	var events []Event
	o, err := c.Execute(context.Background(), []byte(`{"a":1}`), bundle(t, "PACK\n\x00"), func(e Event) { events = append(events, e) })
	if err != nil || o != want {
		t.Fatalf("Execute = %+v, %v", o, err)
	}
	if s := <-got; s != "{\"a\":1}PACK\n\x00" {
		t.Errorf("gateway read %q", s)
	}
	if len(events) != 2 || events[0].Phase != PhaseRun || string(events[1].Stdout) != "\xffhi\n" {
		t.Errorf("events = %+v", events)
	}
}

func TestExecuteErrors(t *testing.T) {
	for name, answer := range map[string]string{
		"closed without an outcome": "",
		"refused":                   `{"error":"uid 7 is not allowed"}` + "\n",
		"cut off":                   `{"outcome":{"version":1,"status":"com`,
		"two things in one line":    `{"acknowledged":true,"error":"x"}` + "\n",
		"nothing in the line":       `{}` + "\n",
		"unknown field":             `{"outcome":{"version":1,"status":"failed","reason":"x"},"more":1}` + "\n",
		"acknowledged":              `{"acknowledged":true}` + "\n",
		"relative evidence":         `{"outcome":{"version":1,"status":"complete","evidenceDir":"out"}}` + "\n",
		"oversized":                 `{"error":"` + strings.Repeat("x", MaxLineBytes) + `"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := listen(t, func(conn net.Conn) { io.WriteString(conn, answer) })
			o, err := c.Execute(context.Background(), []byte("{}"), bundle(t, "x"), nil)
			if err == nil {
				t.Fatalf("Execute = %+v, want an error", o)
			}
			if name == "refused" && !strings.Contains(err.Error(), "uid 7 is not allowed") {
				t.Errorf("error %q hides the gateway's reason", err)
			}
		})
	}
}

func TestExecuteCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	closed := make(chan error, 1)
	c := listen(t, func(conn net.Conn) {
		WriteReply(conn, Reply{Event: &Event{Phase: PhaseRun}})
		_, err := io.Copy(io.Discard, conn) // ends when the client closes
		closed <- err
	})
	_, err := c.Execute(ctx, []byte("{}"), bundle(t, "x"), func(Event) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Execute = %v, want context.Canceled", err)
	}
	<-closed
}

func TestAcknowledge(t *testing.T) {
	c := listen(t, func(conn net.Conn) {
		h, err := ReadHeader(bufio.NewReader(conn))
		if err != nil || h.Op != OpAcknowledge {
			WriteReply(conn, Reply{Error: "bad header"})
			return
		}
		if h.EvidenceDir == "/out/known" {
			WriteReply(conn, Reply{Acknowledged: true})
		} else {
			WriteReply(conn, Reply{Error: "not in the outbox"})
		}
	})
	if err := c.Acknowledge(context.Background(), "/out/known"); err != nil {
		t.Error(err)
	}
	if err := c.Acknowledge(context.Background(), "/etc"); err == nil {
		t.Error("acknowledging a foreign directory worked")
	}
	if err := c.Acknowledge(context.Background(), "relative"); !errors.Is(err, ErrFrame) {
		t.Errorf("relative directory: %v, want ErrFrame", err)
	}
}

func TestParseOutcome(t *testing.T) {
	good := []Outcome{
		{Version: 1, Status: Complete, EvidenceDir: "/e"},
		NewOutcome(Retry, "disk full"),
		NewOutcome(Failed, "out of memory\nsecond line\x1b[31m\u202e"),
	}
	for i, want := range good {
		got, err := ParseOutcome(want.Line())
		if err != nil || got != want {
			t.Errorf("ParseOutcome(%s) = %+v, %v", want.Line(), got, err)
		}
		if got.ExitCode() != i {
			t.Errorf("exit code of %s = %d, want %d", got.Status, got.ExitCode(), i)
		}
	}
	if r := good[2].Reason; strings.ContainsAny(r, "\n\x1b\u202e") {
		t.Errorf("reason %q has control characters", r)
	}
	for _, bad := range []string{
		"", "\n", "{}\n", `{"version":1,"status":"failed","reason":"x"}`,
		"{\"version\":1,\"status\":\"failed\",\"reason\":\"x\"}\n\n",
		`{"version":2,"status":"failed","reason":"x"}` + "\n",
		`{"version":1,"status":"failed"}` + "\n",
		`{"version":1,"status":"done","reason":"x"}` + "\n",
		`{"version":1,"status":"complete","evidenceDir":"/e","reason":"x"}` + "\n",
		`{"version":1,"status":"failed","reason":"x"} {}` + "\n",
	} {
		if o, err := ParseOutcome([]byte(bad)); !errors.Is(err, ErrFrame) {
			t.Errorf("ParseOutcome(%q) = %+v, %v, want ErrFrame", bad, o, err)
		}
	}
}

func TestReadEventsDropsWhatIsMalformed(t *testing.T) {
	in := `{"phase":"run","time":"2026-01-01T00:00:00Z"}` + "\n" +
		strings.Repeat("x", 2*MaxLineBytes) + "\n" +
		"null null\n" +
		`{"fault":{"kind":"wall","measured":61,"limit":60},"time":"2026-01-01T00:00:00Z"}` + "\n"
	var got []Event
	if err := ReadEvents(iotest.HalfReader(strings.NewReader(in)), func(e Event) { got = append(got, e) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Phase != "run" || got[1].Fault == nil || got[1].Fault.Limit != 60 {
		t.Errorf("events = %+v", got)
	}
}

// FuzzReadHeader: what is accepted is within its bounds and reads back equal.
func FuzzReadHeader(f *testing.F) {
	f.Add([]byte(`{"version":1,"op":"execute","requestBytes":3,"bundleBytes":4}` + "\nabc"))
	f.Add([]byte(`{"version":1,"op":"acknowledge","evidenceDir":"/x"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ReadHeader(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		again, err := ReadHeader(bufio.NewReader(bytes.NewReader(line(h))))
		if err != nil || again != h {
			t.Fatalf("%+v reads back as %+v, %v", h, again, err)
		}
	})
}

// FuzzParseOutcome: what is accepted encodes to an equal outcome.
func FuzzParseOutcome(f *testing.F) {
	f.Add([]byte(`{"version":1,"status":"failed","reason":"x"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseOutcome(b)
		if err != nil {
			return
		}
		again, err := ParseOutcome(o.Line())
		if err != nil || again != o {
			t.Fatalf("%+v reads back as %+v, %v", o, again, err)
		}
		if !json.Valid(o.Line()) {
			t.Fatal("invalid JSON")
		}
	})
}

package gvisor

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func collect(report string) (events []event, err error) {
	c := make(chan event, 1000)
	err = readEvents(strings.NewReader(report), c)
	close(c)
	for e := range c {
		events = append(events, e)
	}
	return events, err
}

func TestReadEvents(t *testing.T) {
	want := []event{
		{Kind: eventReady},
		{Kind: eventUsage, Peak: 3},
		{Kind: eventExited, Status: 0x100},
		{Kind: eventUsage, Peak: 4, Denials: 2},
		{Kind: eventDone},
	}
	var report bytes.Buffer
	enc := json.NewEncoder(&report)
	for _, e := range want {
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	got, err := collect(report.String())
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("readEvents = %+v, %v", got, err)
	}
}

func TestReadEventsRefused(t *testing.T) {
	tests := map[string]string{
		"not JSON":         "x\n",
		"unknown field":    `{"Kind":"ready","More":1}` + "\n",
		"unknown kind":     `{"Kind":"maybe"}` + "\n",
		"negative count":   `{"Kind":"usage","Peak":-1}` + "\n",
		"negative status":  `{"Kind":"exited","Status":-1}` + "\n",
		"cut in the line":  `{"Kind":"rea`,
		"line without end": strings.Repeat(" ", maxEventBytes+1),
		"two in one line":  `{"Kind":"ready"}{"Kind":"done"}` + "\n",
	}
	for name, report := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := collect(report); err == nil {
				t.Errorf("accepted as %+v", got)
			}
		})
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add([]byte(`{"Kind":"exited","Status":256,"Errno":2}`))
	f.Add([]byte(`{"Kind":"usage","Peak":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := parseEvent(line)
		if err != nil {
			return
		}
		again, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if e2, err := parseEvent(again); err != nil || e2 != e {
			t.Errorf("%+v does not survive: %+v, %v", e, e2, err)
		}
	})
}

func TestIsGVisor(t *testing.T) {
	tests := []struct {
		args string
		want bool
	}{
		{"runsc-sandbox --root=/state boot id", true},
		{"runsc-gofer --root=/state gofer id", true},
		{"runsc[getUsernsFD]", true},
		{"/proc/self/exe --root=/state boot id", true},
		{"/proc/self/exe umount --sync-fd=3", true},
		{"/proc/self/exe confine -- git status", false},
		{"underwrite execute --config boot.yml", false},
		{"./runsc-like boot", false},
	}
	for _, tt := range tests {
		if got := isGVisor(strings.Fields(tt.args)); got != tt.want {
			t.Errorf("isGVisor(%q) = %v, want %v", tt.args, got, tt.want)
		}
	}
}

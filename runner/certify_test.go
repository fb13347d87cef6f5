package runner

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"underwrite/attest"
	"underwrite/attest/gittree"
	"underwrite/runner/internal/hostpath"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

// watchedSigner calls before each signature.
type watchedSigner struct {
	Signer
	before func()
}

func (s watchedSigner) Sign(message []byte) ([]byte, error) {
	s.before()
	return s.Signer.Sign(message)
}

// TestBeforeTheFirstSignature: when the capability is signed, the replay
// identity is reserved, the executable is pinned and the workspace holds the
// input tree; the job then gets that very executable.
func TestBeforeTheFirstSignature(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	request, err := attest.ParseRequest(raw)
	must(t, err)
	s := scratch{h.Config.ScratchDir(), replayKey(t, raw)}
	var signatures int
	var states []ledger.State
	var pinned os.FileInfo
	var inputTree string
	load := h.LoadKey
	h.LoadKey = func() (Signer, error) {
		key, err := load()
		return watchedSigner{key, func() {
			signatures++
			states = append(states, h.row(t, raw).State)
			if signatures > 1 {
				return
			}
			program, err := os.ReadFile(s.executable())
			must(t, err)
			if attest.SHA256Hex(program) != request.Profile.Job.Executable.SHA256 {
				t.Error("another program is pinned")
			}
			pinned, err = os.Stat(s.executable())
			must(t, err)
			inputTree, _, err = gittree.Measure(t.Context(), s.workspace(), gittree.DefaultLimits(1<<20))
			must(t, err)
		}}, err
	}
	h.runtime.before = func() {
		if now, err := os.Stat(s.executable()); err != nil || !os.SameFile(now, pinned) {
			t.Errorf("the job gets another file than the pinned one: %v", err)
		}
	}
	if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	if len(states) != 2 || states[0] != ledger.Preparing || states[1] != ledger.Executing {
		t.Errorf("signed in states %v, want the capability in preparing and the receipt in executing", states)
	}
	if row := h.row(t, raw); row.InputTree != inputTree {
		t.Errorf("signed input tree %s, in the workspace was %s", row.InputTree, inputTree)
	}
}

// TestPin: the copy is the file that was asked for, or there is none to run.
func TestPin(t *testing.T) {
	program := []byte("#!/bin/sh\nexit 0\n")
	want := func(content []byte) attest.Executable {
		return attest.Executable{SHA256: attest.SHA256Hex(content), Bytes: int64(len(content))}
	}
	for _, c := range []struct {
		name   string
		want   attest.Executable
		link   bool
		reason error // nil if it is pinned
	}{
		{name: "the file", want: want(program)},
		{name: "other byte", want: want(bytes.Replace(program, []byte("0"), []byte("1"), 1)), reason: errPinned},
		{name: "longer", want: want(append(program[:len(program):len(program)], ' ')), reason: errPinned},
		{name: "shorter", want: want(program[:len(program)-1]), reason: errPinned},
		{name: "through a link", want: want(program), link: true, reason: hostpath.ErrLink},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := scratch{t.TempDir(), "key"}
			must(t, s.create())
			c.want.Path = filepath.Join(t.TempDir(), "program")
			must(t, os.WriteFile(c.want.Path, program, 0o755))
			if c.link {
				must(t, os.Symlink(c.want.Path, c.want.Path+"-link"))
				c.want.Path += "-link"
			}
			if err := s.pin(c.want); !errors.Is(err, c.reason) {
				t.Fatalf("pin = %v, want %v", err, c.reason)
			}
			if c.reason != nil {
				return
			}
			// The original changes afterwards; the copy does not.
			must(t, os.WriteFile(c.want.Path, []byte("changed"), 0o755))
			info, err := os.Lstat(s.executable())
			must(t, err)
			got, err := os.ReadFile(s.executable())
			if err != nil || !bytes.Equal(got, program) || info.Mode() != 0o555 {
				t.Errorf("pinned %q, mode %v, %v", got, info.Mode(), err)
			}
		})
	}
}

// TestHeldChallenge: a request that meets its challenge in the hands of one
// whose job has not started is not told failed, for it can still run if that
// one is released. Once the other has started, it is.
func TestHeldChallenge(t *testing.T) {
	in, h := newHarness(t)
	first := in.request(t, h.Broker, 1, nil)
	second := in.request(t, h.Broker, 1, func(r *attest.Request) { r.Action.Seq = 2 })
	other := openHarness(t, in)
	input := in.input(second)
	input.EvidenceDir += "2"
	mount := h.Mount
	h.Mount = func(string, int64) error { // the first is preparing, and then released
		if o := other.Execute(t.Context(), input); o.Status != wire.Retry {
			t.Errorf("while the first prepares: %+v", o)
		}
		return errors.New("no mount")
	}
	if o := h.Execute(t.Context(), in.input(first)); o.Status != wire.Retry {
		t.Fatalf("first: %+v", o)
	}
	if o := other.Execute(t.Context(), input); o.Status != wire.Complete {
		t.Errorf("after the release: %+v", o)
	}
	h.Mount = mount
	if o := h.Execute(t.Context(), in.input(first)); o.Status != wire.Failed || h.runtime.starts != 0 {
		t.Errorf("the first again, after the second ran: %+v", o)
	}
}

package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

func hex64(c string) string { return strings.Repeat(c, 64) }

func newLedger(t *testing.T) *Ledger {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger.db")
	if err := Create(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	l, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func reservation(key, challenge string) Reservation {
	return Reservation{ReplayKey: hex64(key), SessionID: "s", Challenge: hex64(challenge), RequestSHA256: hex64("e")}
}

var completion = Completion{
	Receipt: []byte("receipt"), SignerID: "signer", KeyID: "key", InputTree: hex64("1"), OutputTree: hex64("2"),
	ExitCode: 3, ValidatedAt: now,
	Artifacts: []Artifact{{"output.bundle", hex64("3"), 9}, {"stderr", hex64("4"), 0}, {"stdout", hex64("5"), 7}},
}

// bring makes a row in the given state.
func bring(t *testing.T, l *Ledger, key string, s State) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	must(l.Reserve(ctx, reservation(key, key), now))
	if s == Failed {
		must(l.SetFailed(ctx, hex64(key), Failure{Reason: "r"}, now))
	}
	if s == Ready || s == Executing || s == Complete {
		must(l.SetReady(ctx, hex64(key), []byte("capability"), hex64("c"), now))
	}
	if s == Executing || s == Complete {
		must(l.SetExecuting(ctx, hex64(key), now))
	}
	if s == Complete {
		must(l.SetComplete(ctx, hex64(key), completion, now))
	}
}

// TestTransitions tries every move from every state.
func TestTransitions(t *testing.T) {
	moves := []struct {
		name string
		from []State
		to   State
		do   func(context.Context, *Ledger, string) error
	}{
		{"ready", []State{Preparing}, Ready, func(ctx context.Context, l *Ledger, k string) error {
			return l.SetReady(ctx, k, []byte("other"), hex64("d"), now)
		}},
		{"executing", []State{Ready}, Executing, func(ctx context.Context, l *Ledger, k string) error {
			return l.SetExecuting(ctx, k, now)
		}},
		{"complete", []State{Executing}, Complete, func(ctx context.Context, l *Ledger, k string) error {
			return l.SetComplete(ctx, k, completion, now)
		}},
		{"failed", []State{Preparing, Ready, Executing}, Failed, func(ctx context.Context, l *Ledger, k string) error {
			return l.SetFailed(ctx, k, Failure{Reason: "no", Fault: []byte(`{"kind":"wall"}`)}, now)
		}},
		{"release", []State{Preparing, Ready}, "", func(ctx context.Context, l *Ledger, k string) error {
			return l.Release(ctx, k)
		}},
	}
	for _, from := range []State{Preparing, Ready, Executing, Complete, Failed, ""} {
		for _, m := range moves {
			t.Run(fmt.Sprintf("%s to %s", from, m.name), func(t *testing.T) {
				l := newLedger(t)
				if from != "" {
					bring(t, l, "a", from)
				}
				before, _ := l.Get(t.Context(), hex64("a"))
				err := m.do(t.Context(), l, hex64("a"))
				after, getErr := l.Get(t.Context(), hex64("a"))
				if !slices.Contains(m.from, from) {
					if err == nil {
						t.Fatal("a forbidden move worked")
					}
					if fmt.Sprint(before) != fmt.Sprint(after) {
						t.Errorf("a forbidden move changed %v to %v", before, after)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if m.to == "" {
					if !errors.Is(getErr, ErrNotFound) {
						t.Errorf("released row: %v, %v", after, getErr)
					}
				} else if getErr != nil || after.State != m.to {
					t.Errorf("state = %v, %v, want %s", after, getErr, m.to)
				}
			})
		}
	}
}

func TestCompleteReadsBack(t *testing.T) {
	l := newLedger(t)
	bring(t, l, "a", Complete)
	e, err := l.Get(t.Context(), hex64("a"))
	if err != nil {
		t.Fatal(err)
	}
	if e.Reservation != reservation("a", "a") || e.State != Complete || string(e.Capability) != "capability" ||
		e.CapabilityPayloadSHA256 != hex64("c") || !bytes.Equal(e.Receipt, completion.Receipt) {
		t.Errorf("row = %+v", e)
	}
	if e.SignerID != "signer" || e.KeyID != "key" || e.ExitCode != 3 || !e.ValidatedAt.Equal(now) || !slices.Equal(e.Artifacts, completion.Artifacts) {
		t.Errorf("completion = %+v", e.Completion)
	}
}

func TestUniqueness(t *testing.T) {
	// What was not started may be released, and then its challenge is free.
	for s, want := range map[State]error{
		Preparing: ErrHeld, Ready: ErrHeld, Executing: ErrChallenge, Complete: ErrChallenge, Failed: ErrChallenge,
	} {
		t.Run(string(s), func(t *testing.T) {
			l := newLedger(t)
			bring(t, l, "a", s)
			for _, challenge := range []string{"a", "b"} {
				if err := l.Reserve(t.Context(), reservation("a", challenge), now); !errors.Is(err, ErrReserved) {
					t.Errorf("same identity, challenge %s: %v, want ErrReserved", challenge, err)
				}
			}
			if err := l.Reserve(t.Context(), reservation("b", "a"), now); !errors.Is(err, want) {
				t.Errorf("same challenge: %v, want %v", err, want)
			}
			if err := l.Refuse(t.Context(), reservation("b", "a"), Failure{Reason: "x"}, now); !errors.Is(err, want) {
				t.Errorf("same challenge refused: %v, want %v", err, want)
			}
			other := reservation("b", "a")
			other.SessionID = "other"
			if err := l.Reserve(t.Context(), other, now); err != nil {
				t.Errorf("same challenge in another session: %v", err)
			}
		})
	}
}

func TestRefuseIsTerminal(t *testing.T) {
	l := newLedger(t)
	if err := l.Refuse(t.Context(), reservation("a", "a"), Failure{Reason: "unknown profile"}, now); err != nil {
		t.Fatal(err)
	}
	e, err := l.Get(t.Context(), hex64("a"))
	if err != nil || e.State != Failed || e.Reason != "unknown profile" {
		t.Errorf("row = %+v, %v", e, err)
	}
}

// TestSchemaHolds shows that the rules hold against a writer that ignores the
// package.
func TestSchemaHolds(t *testing.T) {
	for name, query := range map[string]string{
		"complete reopened":         `UPDATE executions SET state = 'executing', receipt = NULL, receipt_sha256 = NULL WHERE state = 'complete'`,
		"receipt replaced":          `UPDATE executions SET receipt = x'00' WHERE state = 'complete'`,
		"failed reopened":           `UPDATE executions SET state = 'preparing', reason = NULL WHERE state = 'failed'`,
		"executing deleted":         `DELETE FROM executions WHERE state = 'executing'`,
		"failed deleted":            `DELETE FROM executions WHERE state = 'failed'`,
		"ready without capability":  `UPDATE executions SET state = 'ready' WHERE state = 'preparing'`,
		"complete without receipt":  `UPDATE executions SET state = 'complete' WHERE state = 'executing'`,
		"failed without reason":     `UPDATE executions SET state = 'failed' WHERE state = 'executing'`,
		"unknown state":             `UPDATE executions SET state = 'done' WHERE state = 'preparing'`,
		"artifact without its row":  `INSERT INTO artifacts VALUES ('` + hex64("9") + `', 'stdout', '` + hex64("0") + `', 1)`,
		"artifact with wrong name":  `INSERT INTO artifacts VALUES ('` + hex64("c") + `', '../x', '` + hex64("0") + `', 1)`,
		"artifact with a text size": `INSERT INTO artifacts VALUES ('` + hex64("c") + `', 'request.json', '` + hex64("0") + `', 'x')`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			for key, s := range map[string]State{"a": Preparing, "b": Executing, "c": Complete, "d": Failed} {
				bring(t, l, key, s)
			}
			if _, err := l.db.ExecContext(t.Context(), query); err == nil {
				t.Error("the schema allowed it")
			}
		})
	}
}

func TestGetFindsCorruption(t *testing.T) {
	for _, column := range []string{"capability", "receipt"} {
		t.Run(column, func(t *testing.T) {
			l := newLedger(t)
			bring(t, l, "a", Complete)
			for _, q := range []string{`DROP TRIGGER executions_terminal`, `UPDATE executions SET ` + column + ` = x'00'`} {
				if _, err := l.db.ExecContext(t.Context(), q); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := l.Get(t.Context(), hex64("a")); !errors.Is(err, ErrCorrupt) {
				t.Errorf("Get = %v, want ErrCorrupt", err)
			}
		})
	}
}

func TestLeftovers(t *testing.T) {
	l := newLedger(t)
	for key, s := range map[string]State{"a": Preparing, "b": Ready, "c": Executing, "d": Complete, "e": Failed} {
		bring(t, l, key, s)
	}
	keys, err := l.Leftovers(t.Context())
	if want := []string{hex64("a"), hex64("b"), hex64("c")}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("Leftovers = %v, %v, want %v", keys, err, want)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.db")
	if _, err := Open(t.Context(), missing); !errors.Is(err, ErrMissing) {
		t.Errorf("missing file: %v, want ErrMissing", err)
	}
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Error("Open created a file")
	}
	for name, content := range map[string]string{"empty": "", "text": strings.Repeat("not a database\n", 100)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want an error that names the file", name, err)
		}
	}
	newer := filepath.Join(dir, "newer.db")
	if err := Create(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	db, err := open(newer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`); err != nil {
		t.Fatal(err)
	}
	db.Close()
	if _, err := Open(t.Context(), newer); !errors.Is(err, ErrVersion) {
		t.Errorf("newer schema: %v, want ErrVersion", err)
	}
}

func TestCreateTwiceKeepsRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c%#.db") // characters that a URL would interpret
	for range 2 {
		if err := Create(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		l, err := Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Reserve(t.Context(), reservation("a", "a"), now)
		if err != nil && !errors.Is(err, ErrReserved) {
			t.Error(err)
		}
		if _, err := l.Get(t.Context(), hex64("a")); err != nil {
			t.Error(err)
		}
		l.Close()
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
}

// TestDurability: the pragmas of the DSN are in force on the connection.
func TestDurability(t *testing.T) {
	l := newLedger(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000"} {
		var got string
		if err := l.db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", pragma, got, err, want)
		}
	}
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// SessionState is where a session stands.
type SessionState string

// The states. A pull request has at most one session in the first three.
const (
	Freezing          SessionState = "freezing"
	Ready             SessionState = "ready"  // frozen; its checks have executions
	Failed            SessionState = "failed" // cannot be frozen
	SupersededSession SessionState = "superseded"
	ClosedSession     SessionState = "closed"
)

// Pull is a pull request as the API described it.
type Pull struct {
	Repo           string
	Number         int64
	InstallationID int64
	Open           bool
	BaseSHA        string
	HeadSHA        string
}

// Check is a configured check as a session keeps it.
type Check struct {
	Beat        int64 // its number in the session; 0 before it has one
	Name        string
	ProfileName string
	Profile     []byte // canonical trusted profile
}

// Session is one target of a pull request.
type Session struct {
	ID             string
	Repo           string
	Number         int64
	InstallationID int64
	BaseSHA        string
	HeadSHA        string
	State          SessionState
	Target         []byte // canonical document, nil until frozen, as are the next two
	TargetSHA256   string
	InputTree      string
	CreatedAt      time.Time
	Checks         []Check // by beat
}

// Frozen is what freezing a session established. The blobs that the target
// names are durable.
type Frozen struct {
	Target       []byte
	TargetSHA256 string
	InputTree    string
	// Refused has, by beat, the fault (JSON) of each check that can never run.
	Refused map[int64][]byte
}

// Reservation is a request to reserve.
type Reservation struct {
	Challenge     string
	Request       []byte
	RequestSHA256 string
	Predicted     int64
}

// Builder makes the request of a check's next execution. It runs inside of the
// transaction that reserves it, so it must neither block nor use the store.
type Builder func(s Session, c Check, seq int64) (Reservation, error)

// Stopped names the work that became useless. The rows say so already; whoever
// does that work is to be told after the transaction.
type Stopped struct {
	Sessions   []string
	Executions []int64
}

// Sync makes the current session of the pull request fit what the API says: a
// new one for a new target, the last one again for a reopened pull request
// whose target and results still stand, none for a closed one. Each check gets
// a check run and, in a frozen session, a reserved execution. Repeating it
// changes nothing.
func (s *Store) Sync(ctx context.Context, p Pull, checks []Check, build Builder, now time.Time) (stopped Stopped, err error) {
	err = s.write(ctx, "sync pull request", func(tx *sql.Tx) error {
		stopped = Stopped{}
		if err := savePull(ctx, tx, p, now); err != nil {
			return err
		}
		sess, err := currentSession(ctx, tx, p.Repo, p.Number)
		found := err == nil
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		same := found && sess.BaseSHA == p.BaseSHA && sess.HeadSHA == p.HeadSHA
		switch {
		case !p.Open && !found:
			return nil
		case !p.Open:
			return s.endSession(ctx, tx, sess, ClosedSession, &stopped, now, "")
		case found && !same:
			if err := s.endSession(ctx, tx, sess, SupersededSession, &stopped, now, p.HeadSHA); err != nil {
				return err
			}
			fallthrough
		case !found:
			if sess, err = s.reopenOrCreate(ctx, tx, p, len(checks) > 0, now); err != nil || sess.ID == "" {
				return err
			}
		}
		return s.addChecks(ctx, tx, sess, checks, build, now)
	})
	return stopped, err
}

func savePull(ctx context.Context, tx *sql.Tx, p Pull, now time.Time) error {
	state := "closed"
	if p.Open {
		state = "open"
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO pull_requests
		(repo, number, installation_id, state, base_sha, head_sha, synced_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (repo, number) DO UPDATE SET installation_id = $3, state = $4, base_sha = $5, head_sha = $6, synced_at = $7`,
		p.Repo, p.Number, p.InstallationID, state, p.BaseSHA, p.HeadSHA, micros(now))
	return err
}

// endSession ends a session and everything of it that is not over.
func (s *Store) endSession(ctx context.Context, tx *sql.Tx, sess Session, to SessionState, stopped *Stopped, now time.Time, newHead string) error {
	run, by := Cancelled, "closed"
	if to == SupersededSession {
		run, by = Superseded, newHead
	}
	err := swap(ctx, tx, `UPDATE sessions SET state = $2, updated_at = $3 WHERE id = $1 AND state = $4`,
		sess.ID, to, micros(now), sess.State)
	if err != nil {
		return err
	}
	stopped.Sessions = append(stopped.Sessions, sess.ID)
	ids, err := all(ctx, tx, scanInt, `SELECT id FROM executions
		WHERE session_id = $1 AND state IN ('reserved', 'running') ORDER BY id`, sess.ID)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := endExecution(ctx, tx, id, run, nil, Tails{}, now); err != nil {
			return err
		}
	}
	stopped.Executions = append(stopped.Executions, ids...)
	return s.endCheckRuns(ctx, tx, sess.ID, run, nil, by, now)
}

// reopenOrCreate returns the session for an open pull request that has no
// current one; its ID is empty if there is nothing to check.
func (s *Store) reopenOrCreate(ctx context.Context, tx *sql.Tx, p Pull, wanted bool, now time.Time) (Session, error) {
	id, err := one(ctx, tx, scanString, `SELECT id FROM sessions WHERE repo = $1 AND number = $2
		AND created_at = (SELECT MAX(created_at) FROM sessions WHERE repo = $1 AND number = $2)
		AND state = 'closed' AND target IS NOT NULL AND base_sha = $3 AND head_sha = $4
		AND NOT EXISTS (SELECT 1 FROM check_runs WHERE session_id = sessions.id
			AND state NOT IN ('passed', 'contradicted', 'faulted', 'refused'))`, p.Repo, p.Number, p.BaseSHA, p.HeadSHA)
	switch {
	case err == nil:
		if err := swap(ctx, tx, `UPDATE sessions SET state = 'ready', updated_at = $2
			WHERE id = $1 AND state = 'closed'`, id, micros(now)); err != nil {
			return Session{}, err
		}
		return session(ctx, tx, id)
	case !errors.Is(err, ErrNotFound):
		return Session{}, err
	case !wanted:
		return Session{}, nil
	}
	id = uuid.NewString()
	_, err = tx.ExecContext(ctx, `INSERT INTO sessions
		(id, repo, number, installation_id, base_sha, head_sha, state, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, 'freezing', $7, $7)`,
		id, p.Repo, p.Number, p.InstallationID, p.BaseSHA, p.HeadSHA, micros(now))
	if err != nil {
		return Session{}, err
	}
	if err := s.enqueue(ctx, tx, freezeJob{SessionID: id}); err != nil {
		return Session{}, err
	}
	return session(ctx, tx, id)
}

// addChecks adds the configured checks that the session does not have yet.
func (s *Store) addChecks(ctx context.Context, tx *sql.Tx, sess Session, checks []Check, build Builder, now time.Time) error {
	if sess.State == Failed {
		return nil
	}
	known := map[string]bool{}
	var beat int64
	for _, c := range sess.Checks {
		known[c.Name], beat = true, max(beat, c.Beat)
	}
	for _, c := range checks {
		if known[c.Name] {
			continue
		}
		beat++
		known[c.Name], c.Beat = true, beat
		if err := s.addCheck(ctx, tx, sess, c, now); err != nil {
			return err
		}
		sess.Checks = append(sess.Checks, c)
	}
	if sess.State != Ready {
		return nil
	}
	return s.reserveMissing(ctx, tx, sess, build, now)
}

func (s *Store) addCheck(ctx context.Context, tx *sql.Tx, sess Session, c Check, now time.Time) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO session_checks (session_id, beat, name, profile_name, profile)
		VALUES ($1, $2, $3, $4, $5)`, sess.ID, c.Beat, c.Name, c.ProfileName, c.Profile)
	if err != nil {
		return fmt.Errorf("check %s: %w", c.Name, err)
	}
	var id int64
	err = tx.QueryRowContext(ctx, `INSERT INTO check_runs (external_id, session_id, beat, round, state, created_at, updated_at)
		VALUES ($1, $2, $3, 1, 'queued', $4, $4) RETURNING id`, uuid.NewString(), sess.ID, c.Beat, micros(now)).Scan(&id)
	if err != nil {
		return fmt.Errorf("check run of %s: %w", c.Name, err)
	}
	return s.enqueue(ctx, tx, postJob{CheckRunID: id, Version: 1})
}

// SetReady ends the freezing of a session and reserves an execution for each of
// its checks that was not refused: freezing → ready. For one that was, neither a
// number nor a challenge is spent.
func (s *Store) SetReady(ctx context.Context, id string, f Frozen, build Builder, now time.Time) error {
	return s.write(ctx, "finish freezing", func(tx *sql.Tx) error {
		err := swap(ctx, tx, `UPDATE sessions SET state = 'ready', target = $2, target_sha256 = $3, input_tree = $4, updated_at = $5
			WHERE id = $1 AND state = 'freezing'`, id, f.Target, f.TargetSHA256, f.InputTree, micros(now))
		if err != nil {
			return err
		}
		sess, err := session(ctx, tx, id)
		if err != nil {
			return err
		}
		for _, c := range sess.Checks {
			if fault, ok := f.Refused[c.Beat]; ok {
				if err := s.endCheckRunsOf(ctx, tx, id, c.Beat, Refused, fault, now); err != nil {
					return err
				}
			}
		}
		return s.reserveMissing(ctx, tx, sess, build, now)
	})
}

// FailSession says that a session cannot be frozen: freezing → failed. Its
// check runs end in the given state with the fault (JSON).
func (s *Store) FailSession(ctx context.Context, id string, run RunState, fault []byte, now time.Time) error {
	return s.write(ctx, "fail session", func(tx *sql.Tx) error {
		err := swap(ctx, tx, `UPDATE sessions SET state = 'failed', updated_at = $2
			WHERE id = $1 AND state = 'freezing'`, id, micros(now))
		if err != nil {
			return err
		}
		return s.endCheckRuns(ctx, tx, id, run, fault, "", now)
	})
}

// Session reads one session.
func (s *Store) Session(ctx context.Context, id string) (sess Session, err error) {
	err = s.view(ctx, "read session", func(tx *sql.Tx) error {
		sess, err = session(ctx, tx, id)
		return err
	})
	return sess, err
}

const sessionColumns = `id, repo, number, installation_id, base_sha, head_sha, state, target,
	COALESCE(target_sha256, ''), COALESCE(input_tree, ''), created_at`

func session(ctx context.Context, tx *sql.Tx, id string) (Session, error) {
	return sessionWhere(ctx, tx, `id = $1`, id)
}

func currentSession(ctx context.Context, tx *sql.Tx, repo string, number int64) (Session, error) {
	return sessionWhere(ctx, tx, `repo = $1 AND number = $2 AND state IN ('freezing', 'ready', 'failed')`, repo, number)
}

func sessionWhere(ctx context.Context, tx *sql.Tx, where string, args ...any) (Session, error) {
	sess, err := one(ctx, tx, func(row scanner) (s Session, err error) {
		var created sql.NullInt64
		err = row.Scan(&s.ID, &s.Repo, &s.Number, &s.InstallationID, &s.BaseSHA, &s.HeadSHA, &s.State, &s.Target,
			&s.TargetSHA256, &s.InputTree, &created)
		s.CreatedAt = fromMicros(created)
		return s, err
	}, `SELECT `+sessionColumns+` FROM sessions WHERE `+where, args...)
	if err != nil {
		return Session{}, err
	}
	sess.Checks, err = all(ctx, tx, func(row scanner) (c Check, err error) {
		return c, row.Scan(&c.Beat, &c.Name, &c.ProfileName, &c.Profile)
	}, `SELECT beat, name, profile_name, profile FROM session_checks WHERE session_id = $1 ORDER BY beat`, sess.ID)
	return sess, err
}

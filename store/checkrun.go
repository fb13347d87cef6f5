package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// CheckRun is a check run with everything that it may show, as of one moment.
type CheckRun struct {
	ID            int64
	ExternalID    string
	Session       Session
	Check         Check
	Round         int64
	State         RunState
	Fault         []byte // JSON, nil if there is none
	By            string // of Superseded the newer head, of Cancelled who did it
	GitHubID      int64  // 0 until known
	Version       int64
	PostedVersion int64
	Shown         bool // as completed: nothing will be posted any more
	Undeliverable string
	CreatedAt     time.Time
	CompletedAt   time.Time  // zero until it is terminal
	Execution     *Execution // the latest, nil before there is one
	Evidence      *Evidence  // of that execution, nil without a receipt
}

// CheckRun reads a check run, and those of the same check for other open pull
// requests with the same head.
func (s *Store) CheckRun(ctx context.Context, id int64) (run CheckRun, others []CheckRun, err error) {
	err = s.view(ctx, "read check run", func(tx *sql.Tx) error {
		run, others, err = checkRunAndOthers(ctx, tx, id)
		return err
	})
	return run, others, err
}

// CheckRunByExternalID is CheckRun for the id that GitHub and links know.
func (s *Store) CheckRunByExternalID(ctx context.Context, externalID string) (run CheckRun, others []CheckRun, err error) {
	err = s.view(ctx, "read check run", func(tx *sql.Tx) error {
		id, err := one(ctx, tx, scanInt, `SELECT id FROM check_runs WHERE external_id = $1`, externalID)
		if err != nil {
			return err
		}
		run, others, err = checkRunAndOthers(ctx, tx, id)
		return err
	})
	return run, others, err
}

func checkRunAndOthers(ctx context.Context, tx *sql.Tx, id int64) (run CheckRun, others []CheckRun, err error) {
	if run, err = checkRun(ctx, tx, id); err != nil {
		return CheckRun{}, nil, err
	}
	others, err = checkRunsWhere(ctx, tx, `SELECT r.id FROM check_runs r
		JOIN sessions s ON s.id = r.session_id
		JOIN session_checks c ON c.session_id = r.session_id AND c.beat = r.beat
		JOIN pull_requests p ON p.repo = s.repo AND p.number = s.number
		WHERE s.repo = $1 AND s.head_sha = $2 AND s.number <> $3 AND c.name = $4
		AND s.state IN ('freezing', 'ready', 'failed') AND p.state = 'open'
		AND r.round = (SELECT MAX(round) FROM check_runs WHERE session_id = r.session_id AND beat = r.beat)
		ORDER BY s.number`, run.Session.Repo, run.Session.HeadSHA, run.Session.Number, run.Check.Name)
	return run, others, err
}

// CheckRuns lists the check runs of a pull request's sessions, oldest first.
func (s *Store) CheckRuns(ctx context.Context, repo string, number int64) (list []CheckRun, err error) {
	err = s.view(ctx, "list check runs", func(tx *sql.Tx) error {
		list, err = checkRunsWhere(ctx, tx, `SELECT r.id FROM check_runs r JOIN sessions s ON s.id = r.session_id
			WHERE s.repo = $1 AND s.number = $2 ORDER BY r.id`, repo, number)
		return err
	})
	return list, err
}

// LatestCheckRuns lists the newest check runs of all pull requests, newest
// first, at most limit.
func (s *Store) LatestCheckRuns(ctx context.Context, limit int) (list []CheckRun, err error) {
	err = s.view(ctx, "list latest check runs", func(tx *sql.Tx) error {
		list, err = checkRunsWhere(ctx, tx, `SELECT id FROM check_runs ORDER BY id DESC LIMIT $1`, limit)
		return err
	})
	return list, err
}

// checkRunsWhere reads the check runs whose ids the query yields.
func checkRunsWhere(ctx context.Context, tx *sql.Tx, query string, args ...any) (list []CheckRun, err error) {
	ids, err := all(ctx, tx, scanInt, query, args...)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		run, err := checkRun(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		list = append(list, run)
	}
	return list, nil
}

func checkRun(ctx context.Context, tx *sql.Tx, id int64) (CheckRun, error) {
	var session_, fault string
	var beat int64
	run, err := one(ctx, tx, func(row scanner) (r CheckRun, err error) {
		var created, completed sql.NullInt64
		err = row.Scan(&r.ID, &r.ExternalID, &session_, &beat, &r.Round, &r.State, &fault, &r.By, &r.GitHubID,
			&r.Version, &r.PostedVersion, &r.Shown, &r.Undeliverable, &created, &completed)
		r.CreatedAt, r.CompletedAt = fromMicros(created), fromMicros(completed)
		return r, err
	}, `SELECT id, external_id, session_id, beat, round, state, COALESCE(fault, ''), by_whom, github_id,
		version, posted_version, shown_completed, undeliverable, created_at, completed_at FROM check_runs WHERE id = $1`, id)
	if err != nil {
		return CheckRun{}, err
	}
	if fault != "" {
		run.Fault = []byte(fault)
	}
	if run.Session, err = session(ctx, tx, session_); err != nil {
		return CheckRun{}, err
	}
	for _, c := range run.Session.Checks {
		if c.Beat == beat {
			run.Check = c
		}
	}
	return withExecution(ctx, tx, run)
}

func withExecution(ctx context.Context, tx *sql.Tx, run CheckRun) (CheckRun, error) {
	x, err := latestExecution(ctx, tx, run.ID)
	if errors.Is(err, ErrNotFound) {
		return run, nil
	}
	if err != nil {
		return CheckRun{}, err
	}
	run.Execution = &x
	e, err := evidence(ctx, tx, x.ID)
	if errors.Is(err, ErrNotFound) {
		return run, nil
	}
	run.Evidence = &e
	return run, err
}

// Touch asks for another post of a check run in progress, to show how far it
// is. It is no error if the check run is in another state by now.
func (s *Store) Touch(ctx context.Context, id int64, now time.Time) error {
	return s.write(ctx, "touch check run", func(tx *sql.Tx) error {
		err := swap(ctx, tx, `UPDATE check_runs SET version = version + 1, updated_at = $2
			WHERE id = $1 AND state = 'in_progress'`, id, micros(now))
		if errors.Is(err, ErrState) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.enqueuePosts(ctx, tx, `id = $1`, id)
	})
}

// SetPosted notes that GitHub shows the given version, and whether as
// completed. An older version than the one noted is of no interest.
func (s *Store) SetPosted(ctx context.Context, id, version, githubID int64, completed bool, now time.Time) error {
	return s.write(ctx, "note posted check run", func(tx *sql.Tx) error {
		shown := 0
		if completed {
			shown = 1
		}
		_, err := tx.ExecContext(ctx, `UPDATE check_runs SET posted_version = $2, github_id = $3, shown_completed = $4, updated_at = $5
			WHERE id = $1 AND posted_version < $2`, id, version, githubID, shown, micros(now))
		return err
	})
}

// SetUndeliverable notes that a check run can never be posted, and why.
func (s *Store) SetUndeliverable(ctx context.Context, id int64, why string, now time.Time) error {
	return s.write(ctx, "note undeliverable check run", func(tx *sql.Tx) error {
		return swap(ctx, tx, `UPDATE check_runs SET undeliverable = $2, updated_at = $3 WHERE id = $1`, id, why, micros(now))
	})
}

// endCheckRuns ends the check runs of a session that are not over.
func (s *Store) endCheckRuns(ctx context.Context, tx *sql.Tx, session string, to RunState, fault []byte, by string, now time.Time) error {
	ids, err := all(ctx, tx, scanInt, `SELECT id FROM check_runs
		WHERE session_id = $1 AND state IN ('queued', 'in_progress') ORDER BY id`, session)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.endCheckRun(ctx, tx, id, to, fault, by, now); err != nil {
			return err
		}
	}
	return nil
}

// endCheckRunsOf ends the check runs of one check that are not over.
func (s *Store) endCheckRunsOf(ctx context.Context, tx *sql.Tx, session string, beat int64, to RunState, fault []byte, now time.Time) error {
	ids, err := all(ctx, tx, scanInt, `SELECT id FROM check_runs
		WHERE session_id = $1 AND beat = $2 AND state IN ('queued', 'in_progress') ORDER BY id`, session, beat)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.endCheckRun(ctx, tx, id, to, fault, "", now); err != nil {
			return err
		}
	}
	return nil
}

// endCheckRunOf ends the check run of an execution.
func (s *Store) endCheckRunOf(ctx context.Context, tx *sql.Tx, execution int64, to RunState, fault []byte, now time.Time) error {
	id, err := one(ctx, tx, scanInt, `SELECT check_run_id FROM executions WHERE id = $1`, execution)
	if err != nil {
		return err
	}
	return s.endCheckRun(ctx, tx, id, to, fault, "", now)
}

func (s *Store) endCheckRun(ctx context.Context, tx *sql.Tx, id int64, to RunState, fault []byte, by string, now time.Time) error {
	err := swap(ctx, tx, `UPDATE check_runs SET state = $2, fault = $3, by_whom = $4, version = version + 1,
		updated_at = $5, completed_at = $5 WHERE id = $1 AND state IN ('queued', 'in_progress')`,
		id, to, nullJSON(fault), by, micros(now))
	if err != nil {
		return err
	}
	if err := s.enqueuePosts(ctx, tx, `id = $1`, id); err != nil {
		return err
	}
	return s.touchTwins(ctx, tx, id)
}

// touchTwins asks for another post of results that may have been held back
// until this check run is over: those of the same check for other pull requests
// with the same head.
func (s *Store) touchTwins(ctx context.Context, tx *sql.Tx, id int64) error {
	twins, err := all(ctx, tx, scanInt, `SELECT t.id FROM check_runs t
		JOIN sessions ts ON ts.id = t.session_id
		JOIN session_checks tc ON tc.session_id = t.session_id AND tc.beat = t.beat
		JOIN check_runs r ON r.id = $1
		JOIN sessions rs ON rs.id = r.session_id
		JOIN session_checks rc ON rc.session_id = r.session_id AND rc.beat = r.beat
		WHERE ts.repo = rs.repo AND ts.head_sha = rs.head_sha AND ts.number <> rs.number AND tc.name = rc.name
		AND t.state NOT IN ('queued', 'in_progress') AND t.shown_completed = 0 ORDER BY t.id`, id)
	if err != nil {
		return err
	}
	for _, twin := range twins {
		if err := swap(ctx, tx, `UPDATE check_runs SET version = version + 1 WHERE id = $1`, twin); err != nil {
			return err
		}
		if err := s.enqueuePosts(ctx, tx, `id = $1`, twin); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) enqueuePostOf(ctx context.Context, tx *sql.Tx, execution int64) error {
	return s.enqueuePosts(ctx, tx, `id = (SELECT check_run_id FROM executions WHERE id = $1)`, execution)
}

// enqueuePosts asks for a post of the present version.
func (s *Store) enqueuePosts(ctx context.Context, tx *sql.Tx, where string, arg any) error {
	jobs, err := all(ctx, tx, scanPost, `SELECT id, version FROM check_runs WHERE `+where, arg)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := s.enqueue(ctx, tx, j); err != nil {
			return err
		}
	}
	return nil
}

func scanPost(row scanner) (j postJob, err error) { return j, row.Scan(&j.CheckRunID, &j.Version) }

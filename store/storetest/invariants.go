package storetest

import (
	"context"
	"database/sql"
	"fmt"
)

// invariants find rows that must not exist between any two transactions.
var invariants = map[string]string{
	"two live executions of one check run": `SELECT check_run_id FROM executions
		WHERE state IN ('reserved', 'running') GROUP BY check_run_id HAVING count(*) > 1`,
	"two sessions of one pull request are current": `SELECT repo || number FROM sessions
		WHERE state IN ('freezing', 'ready', 'failed') GROUP BY repo, number HAVING count(*) > 1`,
	"result without evidence": `SELECT id FROM executions
		WHERE state IN ('passed', 'contradicted') AND id NOT IN (SELECT execution_id FROM evidence)`,
	"evidence without result": `SELECT id FROM executions
		WHERE state NOT IN ('passed', 'contradicted') AND id IN (SELECT execution_id FROM evidence)`,
	"completed check run differs from its last execution": `SELECT r.id FROM check_runs r
		JOIN executions e ON e.check_run_id = r.id
		AND e.seq = (SELECT MAX(seq) FROM executions WHERE check_run_id = r.id)
		WHERE r.state NOT IN ('queued', 'in_progress') AND r.state <> e.state`,
	"open check run of an ended session": `SELECT r.id FROM check_runs r JOIN sessions s ON s.id = r.session_id
		WHERE s.state NOT IN ('freezing', 'ready') AND r.state IN ('queued', 'in_progress')`,
	"open check run that nobody works on": `SELECT r.id FROM check_runs r JOIN sessions s ON s.id = r.session_id
		WHERE s.state = 'ready' AND r.state IN ('queued', 'in_progress')
		AND NOT EXISTS (SELECT 1 FROM executions WHERE check_run_id = r.id AND state IN ('reserved', 'running'))`,
	"live execution of an ended session": `SELECT e.id FROM executions e JOIN sessions s ON s.id = e.session_id
		WHERE s.state <> 'ready' AND e.state IN ('reserved', 'running')`,
	"broken reference": `SELECT "table" FROM pragma_foreign_key_check`,
}

// Check opens the database at path by itself and returns what is wrong in it.
func Check(ctx context.Context, path string) (wrong []string, err error) {
	db, err := sql.Open("sqlite", "file:"+path+"?mode=rw&_pragma=query_only(1)&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	for name, query := range invariants {
		ids, err := column(ctx, db, query)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, id := range ids {
			wrong = append(wrong, name+": "+id)
		}
	}
	return wrong, nil
}

// Unfinished returns what is not over: after everything was done, nothing.
func Unfinished(ctx context.Context, path string) (left []string, err error) {
	db, err := sql.Open("sqlite", "file:"+path+"?mode=rw&_pragma=query_only(1)&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return column(ctx, db, `
		SELECT 'delivery ' || guid FROM deliveries WHERE state = 'received'
		UNION ALL SELECT 'session ' || id FROM sessions WHERE state = 'freezing'
		UNION ALL SELECT 'execution ' || id FROM executions WHERE state IN ('reserved', 'running')
		UNION ALL SELECT 'check run ' || id || ' ' || state FROM check_runs WHERE shown_completed = 0
		UNION ALL SELECT 'evidence ' || execution_id FROM evidence WHERE acknowledged_at IS NULL`)
}

func column(ctx context.Context, db *sql.DB, query string) (ids []string, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

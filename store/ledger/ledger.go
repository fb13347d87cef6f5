package ledger

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	migrations "underwrite/migrations/ledger"
)

// State is where an execution stands.
type State string

// The states; Complete and Failed are terminal.
const (
	Preparing State = "preparing" // reserved, nothing signed
	Ready     State = "ready"     // the capability is signed and stored
	Executing State = "executing" // the job was, or is about to be, launched
	Complete  State = "complete"  // there is a receipt
	Failed    State = "failed"    // there will never be one
)

// Errors that callers branch on.
var (
	ErrNotFound  = errors.New("execution is not in the ledger")
	ErrReserved  = errors.New("replay identity is already reserved")
	ErrChallenge = errors.New("challenge was already used in this session by another request")
	ErrHeld      = errors.New("challenge is held by another request whose job has not started")
	ErrState     = errors.New("execution is not in the expected state")
	ErrCorrupt   = errors.New("ledger row does not match its digests")
	ErrMissing   = errors.New("there is no ledger here")
	ErrVersion   = errors.New("ledger has another schema version")
)

// Reservation names a new execution.
type Reservation struct {
	ReplayKey     string // 64 hex digits
	SessionID     string
	Challenge     string // 64 hex digits
	RequestSHA256 string // of the exact request bytes
}

// Artifact is one stored file of a complete execution.
type Artifact struct {
	Name   string
	SHA256 string
	Bytes  int64
}

// Completion is what a complete execution resulted in, with what the
// gateway's own validation established.
type Completion struct {
	Receipt     []byte // envelope
	SignerID    string
	KeyID       string
	InputTree   string
	OutputTree  string
	ExitCode    int64
	ValidatedAt time.Time
	Artifacts   []Artifact
}

// Failure says why there will be no receipt.
type Failure struct {
	Reason string // one line for people
	Fault  []byte // JSON for programs, or nil
}

// Execution is one row. Only the fields that its state has are set.
type Execution struct {
	Reservation
	State                   State
	Capability              []byte // envelope
	CapabilityPayloadSHA256 string
	Completion
	Failure
}

// Ledger is safe for concurrent use, also by several processes.
type Ledger struct{ db *sql.DB }

// Create makes the ledger at path (mode 0600) or brings an older one to the
// current schema.
func Create(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("create ledger: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("create ledger: %w", err)
	}
	db, err := open(path)
	if err != nil {
		return err
	}
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectSQLite3, db, migrations.FS)
	if err != nil {
		return fmt.Errorf("ledger %s: %w", path, err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate ledger %s: %w", path, err)
	}
	return nil
}

// Open opens an existing ledger with the current schema. It never creates one:
// a wrong path must not look like a ledger that has seen no challenge yet.
func Open(ctx context.Context, path string) (*Ledger, error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s (make it with `underwrite gateway init`)", ErrMissing, path)
	}
	db, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(ctx, db); err != nil {
		db.Close()
		return nil, fmt.Errorf("ledger %s: %w", path, err)
	}
	return &Ledger{db}, nil
}

func open(path string) (*sql.DB, error) {
	q := url.Values{
		"mode":    {"rw"},
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

func checkVersion(ctx context.Context, db *sql.DB) error {
	p, err := goose.NewProvider(goose.DialectSQLite3, db, migrations.FS)
	if err != nil {
		return err
	}
	var have int64
	err = db.QueryRowContext(ctx, `SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&have)
	if err != nil {
		return fmt.Errorf("not a ledger: %w", err)
	}
	sources := p.ListSources()
	if want := sources[len(sources)-1].Version; have != want {
		return fmt.Errorf("%w: %d, this program needs %d (run `underwrite gateway init`)", ErrVersion, have, want)
	}
	return nil
}

// Close closes the ledger.
func (l *Ledger) Close() error { return l.db.Close() }

// Reserve inserts a row in state Preparing. ErrReserved means that the replay
// identity has a row already, ErrChallenge that another identity used the
// session's challenge, ErrHeld that another one holds it and may yet be
// released. A crash right after leaves a row for Leftovers.
func (l *Ledger) Reserve(ctx context.Context, r Reservation, now time.Time) error {
	return l.insert(ctx, r, Preparing, Failure{}, now)
}

// Refuse inserts a row in state Failed: a request that was refused before
// anything was done for it, and that stays refused. Errors are Reserve's.
func (l *Ledger) Refuse(ctx context.Context, r Reservation, f Failure, now time.Time) error {
	return l.insert(ctx, r, Failed, f, now)
}

func (l *Ledger) insert(ctx context.Context, r Reservation, s State, f Failure, now time.Time) error {
	_, err := l.db.ExecContext(ctx, `INSERT INTO executions
		(replay_key, session_id, challenge, request_sha256, state, reason, fault, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)`,
		r.ReplayKey, r.SessionID, r.Challenge, r.RequestSHA256, s, nullable(f.Reason), nullable(string(f.Fault)), now.UnixMicro())
	var e *sqlite.Error
	if errors.As(err, &e) && (e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY || e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE) {
		return l.conflict(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("reserve execution: %w", err)
	}
	return nil
}

// conflict tells which of the two keys was taken: an insert that violates both
// reports either.
func (l *Ledger) conflict(ctx context.Context, r Reservation) error {
	var own, started int
	err := l.db.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE replay_key = $1),
		count(*) FILTER (WHERE session_id = $2 AND challenge = $3 AND state NOT IN ('preparing', 'ready'))
		FROM executions WHERE replay_key = $1 OR session_id = $2 AND challenge = $3`,
		r.ReplayKey, r.SessionID, r.Challenge).Scan(&own, &started)
	switch {
	case err != nil:
		return fmt.Errorf("reserve execution: %w", err)
	case own == 1:
		return ErrReserved
	case started == 1:
		return ErrChallenge
	}
	return ErrHeld // or just released
}

// SetReady stores the signed capability: preparing → ready.
func (l *Ledger) SetReady(ctx context.Context, key string, capability []byte, payloadSHA256 string, now time.Time) error {
	return l.swap(ctx, l.db, `UPDATE executions SET state = 'ready', capability = $2, capability_sha256 = $3,
		capability_payload_sha256 = $4, updated_at = $5 WHERE replay_key = $1 AND state = 'preparing'`,
		key, capability, digest(capability), payloadSHA256, now.UnixMicro())
}

// SetExecuting allows the launch: ready → executing. It is durable before the
// job starts, so a crash later never leaves a started job unnoticed.
func (l *Ledger) SetExecuting(ctx context.Context, key string, now time.Time) error {
	return l.swap(ctx, l.db, `UPDATE executions SET state = 'executing', updated_at = $2
		WHERE replay_key = $1 AND state = 'ready'`, key, now.UnixMicro())
}

// SetComplete stores the receipt: executing → complete, in one transaction with
// the artifacts' digests. The artifacts' files are durable before.
func (l *Ledger) SetComplete(ctx context.Context, key string, c Completion, now time.Time) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("complete execution: %w", err)
	}
	defer tx.Rollback()
	err = l.swap(ctx, tx, `UPDATE executions SET state = 'complete', receipt = $2, receipt_sha256 = $3, signer_id = $4,
		key_id = $5, input_tree = $6, output_tree = $7, exit_code = $8, validated_at = $9, updated_at = $10
		WHERE replay_key = $1 AND state = 'executing'`, key, c.Receipt, digest(c.Receipt), c.SignerID,
		c.KeyID, c.InputTree, c.OutputTree, c.ExitCode, c.ValidatedAt.UnixMicro(), now.UnixMicro())
	if err != nil {
		return err
	}
	for _, a := range c.Artifacts {
		if _, err := tx.ExecContext(ctx, `INSERT INTO artifacts (replay_key, name, sha256, bytes) VALUES ($1, $2, $3, $4)`,
			key, a.Name, a.SHA256, a.Bytes); err != nil {
			return fmt.Errorf("store artifact %s: %w", a.Name, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("complete execution: %w", err)
	}
	return nil
}

// SetFailed ends a row that is not terminal.
func (l *Ledger) SetFailed(ctx context.Context, key string, f Failure, now time.Time) error {
	return l.swap(ctx, l.db, `UPDATE executions SET state = 'failed', reason = $2, fault = $3, updated_at = $4
		WHERE replay_key = $1 AND state IN ('preparing', 'ready', 'executing')`,
		key, f.Reason, nullable(string(f.Fault)), now.UnixMicro())
}

// Release forgets a reservation whose job never started and whose capability
// never left the gateway, so that the same request can be tried again.
func (l *Ledger) Release(ctx context.Context, key string) error {
	return l.swap(ctx, l.db, `DELETE FROM executions WHERE replay_key = $1 AND state IN ('preparing', 'ready')`, key)
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// swap runs a compare-and-swap statement on the row of key, which is $1.
func (l *Ledger) swap(ctx context.Context, db execer, query, key string, args ...any) error {
	res, err := db.ExecContext(ctx, query, append([]any{key}, args...)...)
	if err != nil {
		return fmt.Errorf("move execution: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("%w: %s", errors.Join(ErrState, err), key)
	}
	return nil
}

// Get reads a row and checks its envelopes against their digests.
func (l *Ledger) Get(ctx context.Context, key string) (*Execution, error) {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read execution: %w", err)
	}
	defer tx.Rollback()
	e, err := scan(tx.QueryRowContext(ctx, `SELECT replay_key, session_id, challenge, request_sha256, state,
		capability, COALESCE(capability_sha256, ''), COALESCE(capability_payload_sha256, ''),
		receipt, COALESCE(receipt_sha256, ''), COALESCE(signer_id, ''), COALESCE(key_id, ''), COALESCE(input_tree, ''),
		COALESCE(output_tree, ''), COALESCE(exit_code, 0), COALESCE(validated_at, 0), COALESCE(reason, ''), COALESCE(fault, '')
		FROM executions WHERE replay_key = $1`, key))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read execution: %w", err)
	}
	e.Artifacts, err = artifacts(ctx, tx, key)
	return e, err
}

func scan(row *sql.Row) (*Execution, error) {
	var e Execution
	var capabilitySum, receiptSum, fault string
	var validated int64
	err := row.Scan(&e.ReplayKey, &e.SessionID, &e.Challenge, &e.RequestSHA256, &e.State,
		&e.Capability, &capabilitySum, &e.CapabilityPayloadSHA256,
		&e.Receipt, &receiptSum, &e.SignerID, &e.KeyID, &e.InputTree,
		&e.OutputTree, &e.ExitCode, &validated, &e.Reason, &fault)
	if err != nil {
		return nil, err
	}
	if e.Capability != nil && digest(e.Capability) != capabilitySum || e.Receipt != nil && digest(e.Receipt) != receiptSum {
		return nil, fmt.Errorf("%w: %s", ErrCorrupt, e.ReplayKey)
	}
	if validated != 0 {
		e.ValidatedAt = time.UnixMicro(validated).UTC()
	}
	if fault != "" {
		e.Fault = []byte(fault)
	}
	return &e, nil
}

func artifacts(ctx context.Context, tx *sql.Tx, key string) ([]Artifact, error) {
	rows, err := tx.QueryContext(ctx, `SELECT name, sha256, bytes FROM artifacts WHERE replay_key = $1 ORDER BY name`, key)
	if err != nil {
		return nil, fmt.Errorf("read artifacts: %w", err)
	}
	defer rows.Close()
	var all []Artifact
	for rows.Next() {
		var a Artifact
		if err := rows.Scan(&a.Name, &a.SHA256, &a.Bytes); err != nil {
			return nil, fmt.Errorf("read artifacts: %w", err)
		}
		all = append(all, a)
	}
	return all, rows.Err()
}

// Leftovers lists the rows that are not terminal. Those whose Lock is free
// belong to a process that is gone.
func (l *Ledger) Leftovers(ctx context.Context) ([]string, error) {
	rows, err := l.db.QueryContext(ctx, `SELECT replay_key FROM executions
		WHERE state IN ('preparing', 'ready', 'executing') ORDER BY replay_key`)
	if err != nil {
		return nil, fmt.Errorf("list unfinished executions: %w", err)
	}
	defer rows.Close()
	var keys []string
	for rows.Next() {
		var k string
		if err := rows.Scan(&k); err != nil {
			return nil, fmt.Errorf("list unfinished executions: %w", err)
		}
		keys = append(keys, k)
	}
	return keys, rows.Err()
}

func nullable(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

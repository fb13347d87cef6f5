package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"

	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"underwrite/migrations/controller"
)

// Errors of Open.
var (
	ErrMissing = errors.New("there is no database here")
	ErrVersion = errors.New("database has another schema version")
	ErrCorrupt = errors.New("database is damaged or is none of ours")
)

// Options are how to open a store; the zero value is right outside of tests.
type Options struct {
	// Driver is the database/sql driver, "sqlite" if empty. Tests put one here
	// that fails on demand.
	Driver string
	// Logger gets what the queue has to say, in particular each failed job.
	// Nothing is logged if it is nil.
	Logger *slog.Logger
}

// readers is the number of connections of the read-only handle.
const readers = 4

// Store is safe for concurrent use.
type Store struct {
	db     *sql.DB // one connection
	read   *sql.DB
	insert *river.Client[*sql.Tx] // only inserts jobs
	log    *slog.Logger

	working atomic.Bool // Work is doing jobs
}

// Create makes the database at path (mode 0600) or brings an older one to the
// current schema. The process must hold the Lock. A crash in between leaves a
// database that Open refuses and that another Create completes.
func Create(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	db, err := openWriter(path, "")
	if err != nil {
		return err
	}
	defer db.Close()
	return migrate(ctx, db, path)
}

func migrate(ctx context.Context, db *sql.DB, path string) error {
	p, m, err := migrators(db)
	if err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if err := notNewer(ctx, db); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate database %s: %w", path, err)
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate the queue of database %s: %w", path, err)
	}
	return nil
}

func migrators(db *sql.DB) (*goose.Provider, *rivermigrate.Migrator[*sql.Tx], error) {
	p, err := goose.NewProvider(goose.DialectSQLite3, db, controller.FS)
	if err != nil {
		return nil, nil, err
	}
	m, err := rivermigrate.New(riversqlite.New(db), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	return p, m, err
}

// Open opens an existing database with the current schema. It never creates
// one: a wrong path must not look like a controller that has seen nothing yet.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s (make it with `underwrite init`)", ErrMissing, path)
	}
	db, err := openWriter(path, o.Driver)
	if err != nil {
		return nil, err
	}
	if err := checkSchema(ctx, db); err != nil {
		db.Close()
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	s := &Store{db: db, log: o.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.read, err = openReader(path); err != nil {
		db.Close()
		return nil, err
	}
	s.insert, err = river.NewClient(riversqlite.New(db), &river.Config{Logger: s.log})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open queue: %w", err)
	}
	return s, nil
}

func openWriter(path, driver string) (*sql.DB, error) {
	if driver == "" {
		driver = "sqlite"
	}
	db, err := sql.Open(driver, dsn(path, "rw", "journal_mode(WAL)"))
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

func openReader(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", dsn(path, "rw", "query_only(1)"))
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(readers)
	return db, nil
}

// dsn puts the pragmas where each connection gets them.
func dsn(path, mode, pragma string) string {
	q := url.Values{
		"mode":    {mode},
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "synchronous(FULL)", "foreign_keys(1)", pragma},
	}
	if pragma == "query_only(1)" {
		q.Set("_txlock", "deferred")
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// checkSchema compares both schema versions with this program's, and looks for
// damage.
func checkSchema(ctx context.Context, db *sql.DB) error {
	var result string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&result); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if result != "ok" {
		return fmt.Errorf("%w: %q", ErrCorrupt, result)
	}
	if err := notNewer(ctx, db); err != nil {
		return err
	}
	have, queue, err := versions(ctx, db)
	if err != nil {
		return err
	}
	want, wantQueue, err := wanted(db)
	if err != nil {
		return err
	}
	if have != want || queue != wantQueue {
		return fmt.Errorf("%w: %d.%d, this program needs %d.%d (run `underwrite init` to upgrade it)", ErrVersion, have, queue, want, wantQueue)
	}
	return nil
}

// notNewer refuses a database of a later program, and one of another kind.
func notNewer(ctx context.Context, db *sql.DB) error {
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master`).Scan(&tables); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if tables == 0 {
		return nil // just created
	}
	have, queue, err := versions(ctx, db)
	if err != nil {
		return err
	}
	want, wantQueue, err := wanted(db)
	if err != nil {
		return err
	}
	if have > want || queue > wantQueue {
		return fmt.Errorf("%w: %d.%d, newer than this program's %d.%d (use the newer program)", ErrVersion, have, queue, want, wantQueue)
	}
	return nil
}

func versions(ctx context.Context, db *sql.DB) (have, queue int64, err error) {
	err = db.QueryRowContext(ctx, `SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&have)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE name = 'river_migration'`).Scan(&tables); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if tables == 0 {
		return have, 0, nil // Create was interrupted
	}
	if err := db.QueryRowContext(ctx, `SELECT COALESCE(MAX(version), 0) FROM river_migration`).Scan(&queue); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return have, queue, nil
}

func wanted(db *sql.DB) (version, queue int64, err error) {
	p, m, err := migrators(db)
	if err != nil {
		return 0, 0, err
	}
	sources, all := p.ListSources(), m.AllVersions()
	return sources[len(sources)-1].Version, int64(all[len(all)-1].Version), nil
}

// Close closes the database. Work must have returned.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.read.Close()) }

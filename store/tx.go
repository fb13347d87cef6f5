package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Errors that callers branch on.
var (
	ErrNotFound = errors.New("not in the database")
	// ErrState: the row is not in a state that allows the move. Somebody else
	// moved it: read it again and go on from there.
	ErrState = errors.New("not in the expected state")
	// ErrConflict: other evidence is already recorded for the execution.
	ErrConflict = errors.New("other evidence is already recorded")
)

// write runs f in one transaction of the writing connection. If f fails,
// nothing is changed. An error of the commit leaves open whether it happened:
// callers repeat, and everything here can be repeated.
func (s *Store) write(ctx context.Context, what string, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// view runs f in one read-only transaction: what it reads is of one moment.
func (s *Store) view(ctx context.Context, what string, f func(tx *sql.Tx) error) error {
	tx, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// swap runs a compare-and-swap statement: exactly one row must change, or it is
// ErrState.
func swap(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return ErrState
	}
	return nil
}

// all collects the rows of a query.
func all[T any](ctx context.Context, tx *sql.Tx, scan func(row scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

// one reads one row; none is ErrNotFound.
func one[T any](ctx context.Context, tx *sql.Tx, scan func(row scanner) (T, error), query string, args ...any) (T, error) {
	v, err := scan(tx.QueryRowContext(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return v, err
}

type scanner interface{ Scan(dest ...any) error }

func scanInt(row scanner) (n int64, err error) { return n, row.Scan(&n) }

func scanString(row scanner) (s string, err error) { return s, row.Scan(&s) }

func micros(t time.Time) int64 { return t.UnixMicro() }

// fromMicros is the zero time for a column that is NULL.
func fromMicros(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMicro(n.Int64).UTC()
}

// nullJSON stores no fault as NULL.
func nullJSON(b []byte) sql.NullString { return sql.NullString{String: string(b), Valid: len(b) > 0} }

// Package storetest makes a store's writes fail on demand, and checks what must
// hold between any two of them.
package storetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"
)

// ErrInjected is what a failed call returns.
var ErrInjected = errors.New("injected failure")

// Mode is how a call fails.
type Mode int

// The modes. Dead ones fail every call after that one as well: the process is
// as good as dead.
const (
	Lost          Mode = iota // it did not happen
	Persisted                 // it happened, and is reported as failed
	LostDead                  // a crash right before it
	PersistedDead             // a crash right after it
)

// Modes lists all modes.
var Modes = []Mode{Lost, Persisted, LostDead, PersistedDead}

func (m Mode) String() string {
	return [...]string{"lost", "persisted", "crash before", "crash after"}[m]
}

// Faults counts calls and lets one of them fail.
type Faults struct {
	mu    sync.Mutex
	calls int
	at    int // the call that fails, from 1 on; 0: none
	mode  Mode
	where string
}

// Arm lets the n-th call from now on fail.
func (f *Faults) Arm(n int, m Mode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.at, f.mode, f.where = 0, n, m, ""
}

// Disarm ends the failing. Where is kept.
func (f *Faults) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = 0
}

// Where says which call failed; "" if none did yet.
func (f *Faults) Where() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.where
}

// Do counts a call and makes it, or lets it fail.
func (f *Faults) Do(what string, call func() error) error {
	f.mu.Lock()
	f.calls++
	hit := f.at > 0 && f.calls == f.at
	dead := f.at > 0 && f.calls > f.at && f.mode >= LostDead
	mode := f.mode
	if hit {
		f.where = what
	}
	f.mu.Unlock()
	switch {
	case dead, hit && (mode == Lost || mode == LostDead):
		return fmt.Errorf("%s: %w", what, ErrInjected)
	case hit:
		return errors.Join(call(), fmt.Errorf("%s: %w", what, ErrInjected))
	}
	return call()
}

var drivers atomic.Int64

// Driver registers a database/sql driver whose commits are calls of f, and
// returns its name for store.Options.
func (f *Faults) Driver() string {
	name := fmt.Sprintf("sqlite-faults-%d", drivers.Add(1))
	sql.Register(name, faultyDriver{&sqlite.Driver{}, f})
	return name
}

type faultyDriver struct {
	driver.Driver
	faults *Faults
}

func (d faultyDriver) Open(name string) (driver.Conn, error) {
	c, err := d.Driver.Open(name)
	if err != nil {
		return nil, err
	}
	return conn{c.(sqliteConn), d.faults}, nil
}

// sqliteConn is what database/sql uses of the real driver's connection.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
}

type conn struct {
	sqliteConn
	faults *Faults
}

func (c conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.sqliteConn.BeginTx(ctx, o)
	return faultyTx{tx, c.faults}, err
}

type faultyTx struct {
	driver.Tx
	faults *Faults
}

func (t faultyTx) Commit() error {
	var done bool
	err := t.faults.Do("commit", func() error {
		done = true
		return t.Tx.Commit()
	})
	if !done { // or the connection would stay in the transaction
		err = errors.Join(err, t.Tx.Rollback())
	}
	return err
}

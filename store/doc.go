// Package store is the controller's database: deliveries, sessions,
// executions, consumed evidence, check runs, and the queue of jobs about them.
//
// The tables are the truth, and jobs are hints: a job carries only the key of a
// row, is idempotent, and is inserted in the transaction that makes it
// necessary. Pending lists what the tables say is to be done, and Reconcile
// inserts the jobs that are missing.
//
// States move by compare-and-swap statements that check that one row changed.
// Triggers hold the rules that must survive every writer: terminal states never
// change, a result needs evidence, evidence never changes.
//
// Two handles share the file: one connection that writes, in immediate
// transactions, and a pool that can only read. SQL outside of the migrations is
// written for SQLite and PostgreSQL alike.
package store

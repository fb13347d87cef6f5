// Package store is the controller's database.
package store

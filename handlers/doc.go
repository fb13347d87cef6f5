// Package handlers is the webhook intake: one file per event.
package handlers

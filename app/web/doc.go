// Package web serves pages, health and metrics.
package web

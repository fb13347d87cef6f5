// Package linked is the linked implementation: link, request, consume, land.
package linked

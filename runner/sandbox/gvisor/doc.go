// Package gvisor runs a job in gVisor. It is the one package that imports gVisor.
package gvisor

// Package wire defines what controller, gateway and execution say to each other:
// the outcome line, the event stream and the gateway's socket protocol.
package wire

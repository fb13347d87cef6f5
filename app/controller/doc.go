// Package controller is the state machine of sessions and proofs: it turns
// deliveries into sessions, freezes them, has their checks executed, consumes
// the evidence and posts the check runs.
//
// Every step is a job of the store's queue that starts from the rows as they
// are, so recovery after a crash is the normal path: the job runs again. Rows
// move before anything outside is told; what is told twice is told
// idempotently:
//
//	crash after …                      leaves                   the job again …
//	delivery stored                    received                 dispatches it
//	session made                       freezing                 freezes it
//	blobs put                          unnamed blobs            puts them again
//	session ready, requests reserved   reserved                 starts it
//	started                            running                  sends the same request
//	gateway has the evidence           running                  gets the same evidence
//	evidence consumed                  passed or contradicted   acknowledges it
//	check run posted                   posted version behind    posts the same again
//
// A request is sent again until the gateway says how it ended. Only the answer
// "failed" proves that it can never have a receipt; a new proof then gets a new
// number and a new challenge.
package controller

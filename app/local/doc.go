// Package local is what the commands do that need no GitHub and no running
// gateway: prove runs a job on two revisions of a local repository, verify
// checks evidence, export writes a receipt for other tools, tree measures a directory, profile makes and checks the
// files that say what to run. Package main parses their flags and wires them.
//
// # Prove
//
// Each run has a gateway of its own, which lives in a private directory of the
// system's temporary directory and is gone afterwards: configuration, ledger,
// outbox and, unless the caller has one, a signing key made for this run. The
// execution itself is the real one, as a child process. Its evidence is read as
// hostile transport and verified against the request that was made here before
// anything is said about it; what is published are the verified copies.
//
// For an evidence directory OUT, these files appear beside it and never in it:
// OUT.pub.pem (the public key), OUT.source.bundle (the frozen commits) and
// OUT.expectation.json (what verify needs to know by itself). A job that ends
// without a receipt leaves OUT.pub.pem and OUT.diagnostic.json, the signed
// statement about it, if there is one.
//
// # Verify
//
// A verification is worth what the reader knew before. With a full expectation
// it says that this is the evidence of that run; without one it can say only
// that the evidence is authentic and consistent with itself.
package local

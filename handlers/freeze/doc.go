// Package freeze turns a pull request, or a local pair of commits, into the
// frozen input of a session: the target document and three files, which lie in
// the caller's output directory and whose exact bytes the target names by size
// and SHA-256. Freezer.Freeze asks GitHub, Local a repository on the disk.
//
// # Order
//
// The metadata is read, the base (by its SHA) and refs/pull/N/head are fetched
// into the repository's mirror in one step, without tags and submodules, and
// compared with the metadata. There must be exactly one merge base, and git
// must count as many changed files as GitHub. The diff is written, the metadata
// is read again and must be the same in every field, then the trusted context
// and the bundle are written.
//
// # Files
//
// pr.diff is what this prints in a repository with the two commits:
//
//	git diff --no-color --no-ext-diff --no-textconv --find-renames=50% --binary
//	  --full-index --diff-algorithm=myers --no-indent-heuristic --unified=3
//	  --src-prefix=a/ --dst-prefix=b/ refs/underwrite/base...refs/underwrite/head --
//
// No attribute of the repository is in effect. The bytes are the repository's:
// any encoding, names quoted as git does with core.quotePath.
//
// trusted-context.json is one line of compact JSON with sorted keys, escaped
// like the protocol's canonical JSON, and a newline:
//
//	{"base_sha":"…","files":[{"blob_sha":"…","content":"…","mode":"100644","path":"…"}],"version":1}
//
// The files are sorted by the bytes of their paths and come from the tree of
// the base alone, which the author of the pull request does not control:
//   - AGENTS.md, AGENTS.override.md, CLAUDE.md and CLAUDE.local.md at any depth;
//   - what ends in .md, in any case, below the root's .claude/rules, docs/adr
//     and docs/adrs;
//   - the root's CONTRIBUTING.md;
//   - what the files of the first kind, the rules, and imported files import
//     with @PATH relative to themselves. Imports are looked for in the text
//     outside of code and HTML comments, and any @ at the beginning of a word
//     counts: a file that mentions @somebody needs backticks.
//
// All of them are regular files with UTF-8 contents and paths. A symbolic link
// or submodule in the place of such a file, of .claude, of .claude/rules or of
// anything below it is refused, not skipped: instructions would be missing
// without a word. Refused are also imports that are missing, leave the
// repository, run in a circle or are nested deeper than four, and more than
// Limits allow.
//
// pr.bundle is a version 2 git bundle without prerequisites and with exactly
// the refs refs/underwrite/base and refs/underwrite/head: the whole history of
// both. History is taken as it is; only the gateway checks the trees that it
// uses.
//
// # Trust
//
// Everything fetched is hostile, and so is a local repository. Each git process
// is confined (package confine) and sees only the mirror, to fetch, or, to
// read, a scratch repository that has the two refs, its own configuration and
// borrows the objects. Neither the mirror's nor a local repository's
// configuration, hooks, attributes, grafts and replacement refs are in effect.
// The token reaches git by its environment, is sent to the host of the clone
// URL alone, and no redirect is followed.
//
// # Errors
//
// A *RefusedError is for the author: a change to the pull request or to its
// base is needed. ErrMoved and ErrNotYet pass by themselves. Any other error
// is one of this machine, the network or GitHub.
package freeze

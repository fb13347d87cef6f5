package quarantine

import (
	"strings"
	"unicode/utf8"
)

// badName says why a path component may not stand in a tree, or "".
func badName(name string) string {
	switch {
	case name == "":
		return "empty name in a tree"
	case name == "." || name == "..":
		return "name . or .. in a tree"
	case strings.ContainsAny(name, "/\x00"):
		return "slash or NUL in a name"
	case len(name) > maxNameBytes:
		return "name of more than 255 bytes"
	case looksLikeGit(name):
		return "name that some file systems take for .git"
	}
	return ""
}

// looksLikeGit reports whether a case-insensitive file system, NTFS or HFS+
// would take the name for .git. Windows also separates at backslashes.
func looksLikeGit(name string) bool {
	if strings.EqualFold(withoutIgnorable(name), ".git") {
		return true
	}
	for part := range strings.SplitSeq(name, `\`) {
		part, _, _ = strings.Cut(part, ":") // an NTFS stream of the file
		part = strings.TrimRight(part, ". ")
		if strings.EqualFold(part, ".git") || strings.EqualFold(part, "git~1") {
			return true
		}
	}
	return false
}

// withoutIgnorable drops the code points that HFS+ ignores in names.
func withoutIgnorable(name string) string {
	if !utf8.ValidString(name) {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200C && r <= 0x200F, r >= 0x202A && r <= 0x202E, r >= 0x206A && r <= 0x206F, r == 0xFEFF:
			return -1
		}
		return r
	}, name)
}

// isGitModules reports whether the name is .gitmodules in any ASCII case.
// Strict Git refuses it as a symbolic link, so no output could carry it.
func isGitModules(name string) bool { return strings.EqualFold(name, ".gitmodules") }

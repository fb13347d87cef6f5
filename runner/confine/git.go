package confine

// gitEnvironment keeps every configuration out that is not on the command line
// or in the repository itself.
var gitEnvironment = []string{
	"GIT_CONFIG_NOSYSTEM=1",
	"GIT_CONFIG_GLOBAL=/dev/null",
	"GIT_ATTR_NOSYSTEM=1",
	"GIT_NO_REPLACE_OBJECTS=1",
	"GIT_LITERAL_PATHSPECS=1",
	"GIT_TERMINAL_PROMPT=0",
	"GIT_OPTIONAL_LOCKS=0",
	"GIT_PROTOCOL_FROM_USER=0",
}

// gitFlags come before the subcommand and win over the repository's own
// configuration. No protocol is allowed: a fetch adds `-c
// protocol.https.allow=always` as its first arguments, which is more specific.
var gitFlags = []string{
	"--no-replace-objects",
	"-c", "core.hooksPath=/dev/null",
	"-c", "core.fsmonitor=false",
	"-c", "core.attributesFile=/dev/null",
	"-c", "core.quotePath=true",
	"-c", "core.alternateRefsCommand=",
	"-c", "credential.helper=",
	"-c", "protocol.allow=never",
	"-c", "submodule.recurse=false",
	"-c", "fetch.recurseSubmodules=false",
	"-c", "gc.auto=0",
	"-c", "maintenance.auto=false",
	"-c", "pack.threads=1",
}

// Git returns a Spec that runs git without system or global configuration,
// hooks, replace objects, prompt or transport. gitDir becomes --git-dir and is
// in ReadWrite.
func Git(gitDir string, args ...string) Spec {
	argv := append([]string{"git", "--git-dir=" + gitDir}, gitFlags...)
	return Spec{
		Argv:      append(argv, args...),
		Dir:       gitDir,
		Env:       append([]string{}, gitEnvironment...),
		ReadWrite: []string{gitDir},
	}
}

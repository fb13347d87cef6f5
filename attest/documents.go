package attest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Byte limits of documents. Those of the canonical profile and request are the
// reference consumer's ("Validator contract").
const (
	MaxDocumentBytes = 1_000_000 // any document as given, white space included
	MaxProfileBytes  = 256 << 10
	MaxRequestBytes  = 384 << 10
)

// parse reads one document; what names it in errors.
func parse[T any](data []byte, what string, decode func(*decoder, any, string) T) (T, error) {
	var zero T
	if len(data) > MaxDocumentBytes {
		return zero, fmt.Errorf("%s: %w: more than %d bytes", what, ErrJSON, MaxDocumentBytes)
	}
	v, err := ReadJSON(data)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", what, err)
	}
	return check(v, what, decode)
}

func check[T any](v any, what string, decode func(*decoder, any, string) T) (T, error) {
	var d decoder
	doc := decode(&d, v, what)
	if d.err != nil {
		var zero T
		return zero, fmt.Errorf("%w", d.err)
	}
	return doc, nil
}

// ParseTarget reads and validates one target document ("Frozen target"), in any
// strict JSON spelling. Errors wrap ErrJSON or ErrSchema.
func ParseTarget(data []byte) (Target, error) { return parse(data, "target", (*decoder).target) }

// ParseJob reads and validates one job ("Job"). Errors wrap ErrJSON or ErrSchema.
func ParseJob(data []byte) (Job, error) { return parse(data, "job", (*decoder).job) }

// ParseSandbox reads and validates one sandbox ("Sandbox"). Errors wrap ErrJSON
// or ErrSchema.
func ParseSandbox(data []byte) (Sandbox, error) { return parse(data, "sandbox", (*decoder).sandbox) }

// ParseProfile reads and validates one trusted execution profile ("Validator
// contract"). Errors wrap ErrJSON or ErrSchema.
func ParseProfile(data []byte) (Profile, error) { return parse(data, "profile", (*decoder).profile) }

// ParseRequest reads and validates a request, which must be at most
// MaxRequestBytes long and in canonical form, so that equal requests are equal
// bytes. Errors wrap ErrJSON, ErrSchema or ErrNotCanonical.
func ParseRequest(data []byte) (Request, error) {
	if len(data) > MaxRequestBytes {
		return Request{}, fmt.Errorf("request: %w: more than %d bytes", ErrJSON, MaxRequestBytes)
	}
	request, err := parse(data, "request", (*decoder).request)
	if err != nil {
		return Request{}, err
	}
	canonical, err := request.Canonical()
	if err != nil {
		return Request{}, err
	}
	if !bytes.Equal(canonical, data) {
		return Request{}, fmt.Errorf("request: %w", ErrNotCanonical)
	}
	return request, nil
}

// Validate checks t as ParseTarget does. Errors wrap ErrSchema.
func (t Target) Validate() error {
	_, err := check(t.value(), "target", (*decoder).target)
	return err
}

// Validate checks j as ParseJob does. Errors wrap ErrSchema.
func (j Job) Validate() error {
	_, err := check(j.value(), "job", (*decoder).job)
	return err
}

// Validate checks s as ParseSandbox does. Errors wrap ErrSchema.
func (s Sandbox) Validate() error {
	_, err := check(s.value(), "sandbox", (*decoder).sandbox)
	return err
}

// Validate checks p as ParseProfile does. Errors wrap ErrSchema.
func (p Profile) Validate() error {
	_, err := check(p.value(), "profile", (*decoder).profile)
	return err
}

// Validate checks r as ParseRequest does. Errors wrap ErrSchema.
func (r Request) Validate() error {
	_, err := r.Canonical()
	return err
}

// Canonical validates t and returns its canonical JSON, which TargetDigest
// hashes. Errors wrap ErrSchema.
func (t Target) Canonical() ([]byte, error) { return canonical(t.Validate(), t.value()) }

// Canonical validates j and returns its canonical JSON, which JobDigest hashes.
// Errors wrap ErrSchema.
func (j Job) Canonical() ([]byte, error) { return canonical(j.Validate(), j.value()) }

// Canonical validates s and returns its canonical JSON. Errors wrap ErrSchema.
func (s Sandbox) Canonical() ([]byte, error) { return canonical(s.Validate(), s.value()) }

// Canonical validates p and returns its canonical JSON. Errors wrap ErrSchema.
func (p Profile) Canonical() ([]byte, error) { return canonical(p.Validate(), p.value()) }

// Canonical validates r and returns its canonical JSON: the bytes of
// request.json. Errors wrap ErrSchema.
func (r Request) Canonical() ([]byte, error) {
	_, err := check(r.value(), "request", (*decoder).request)
	data, err := canonical(err, r.value())
	if err == nil && len(data) > MaxRequestBytes {
		return nil, fmt.Errorf("%w: request is %d bytes, at most %d", ErrSchema, len(data), MaxRequestBytes)
	}
	return data, err
}

func canonical(invalid error, value any) ([]byte, error) {
	if invalid != nil {
		return nil, invalid
	}
	return CanonicalJSON(value)
}

func (d *decoder) target(v any, at string) Target {
	m := d.object(v, at, "version", "kind", "repo", "number", "state", "merged_at", "base_sha", "head_sha",
		"head_repo_id", "head_repo", "head_ref", "merge_base_sha", "changed_files", "diff_sha256", "diff_bytes",
		"trusted_context_sha256", "trusted_context_bytes", "object_bundle_sha256", "object_bundle_bytes")
	t := Target{
		Version:              d.version(m["version"], at+".version"),
		Kind:                 d.literal(m["kind"], at+".kind", "github_pr"),
		Repo:                 d.match(m["repo"], at+".repo", "owner/name", repoPattern),
		Number:               d.positive(m["number"], at+".number"),
		State:                d.literal(m["state"], at+".state", "open", "closed"),
		BaseSHA:              d.sha1(m["base_sha"], at+".base_sha"),
		HeadSHA:              d.sha1(m["head_sha"], at+".head_sha"),
		HeadRef:              d.filled(m["head_ref"], at+".head_ref"),
		MergeBaseSHA:         d.sha1(m["merge_base_sha"], at+".merge_base_sha"),
		ChangedFiles:         d.count(m["changed_files"], at+".changed_files"),
		DiffSHA256:           d.sha256(m["diff_sha256"], at+".diff_sha256"),
		DiffBytes:            d.count(m["diff_bytes"], at+".diff_bytes"),
		TrustedContextSHA256: d.sha256(m["trusted_context_sha256"], at+".trusted_context_sha256"),
		TrustedContextBytes:  d.positive(m["trusted_context_bytes"], at+".trusted_context_bytes"),
		ObjectBundleSHA256:   d.sha256(m["object_bundle_sha256"], at+".object_bundle_sha256"),
		ObjectBundleBytes:    d.positive(m["object_bundle_bytes"], at+".object_bundle_bytes"),
	}
	d.nullable(&t, m, at)
	return t
}

// nullable reads the three fields of a target that may be null. The text allows
// any RFC 3339 text in merged_at; the reference takes a protocol timestamp only.
func (d *decoder) nullable(t *Target, m map[string]any, at string) {
	if v := m["merged_at"]; v != nil {
		merged := d.timestamp(v, at+".merged_at")
		t.MergedAt = &merged
	}
	if m["head_repo"] == nil {
		if m["head_repo_id"] != nil {
			d.fail(at+".head_repo_id", "must be null with head_repo")
		}
		return
	}
	repo := d.match(m["head_repo"], at+".head_repo", "null or owner/name", repoPattern)
	id := d.positive(m["head_repo_id"], at+".head_repo_id")
	t.HeadRepo, t.HeadRepoID = &repo, &id
}

func (t Target) value() any {
	return map[string]any{
		"version": t.Version, "kind": t.Kind, "repo": t.Repo, "number": t.Number, "state": t.State,
		"merged_at": pointed(t.MergedAt), "base_sha": t.BaseSHA, "head_sha": t.HeadSHA,
		"head_repo_id": pointed(t.HeadRepoID), "head_repo": pointed(t.HeadRepo), "head_ref": t.HeadRef,
		"merge_base_sha": t.MergeBaseSHA, "changed_files": t.ChangedFiles,
		"diff_sha256": t.DiffSHA256, "diff_bytes": t.DiffBytes,
		"trusted_context_sha256": t.TrustedContextSHA256, "trusted_context_bytes": t.TrustedContextBytes,
		"object_bundle_sha256": t.ObjectBundleSHA256, "object_bundle_bytes": t.ObjectBundleBytes,
	}
}

// pointed is null for nil.
func pointed[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

func (d *decoder) action(v any, at string) Action {
	m := d.object(v, at, "seq", "beat", "attempt")
	return Action{
		Seq:     d.positive(m["seq"], at+".seq"),
		Beat:    d.positive(m["beat"], at+".beat"),
		Attempt: d.positive(m["attempt"], at+".attempt"),
	}
}

func (a Action) value() any {
	return map[string]any{"seq": a.Seq, "beat": a.Beat, "attempt": a.Attempt}
}

func (d *decoder) job(v any, at string) Job {
	m := d.object(v, at, "argv", "cwd", "environment", "executable", "stdin")
	j := Job{
		Argv:        d.argv(m["argv"], at+".argv"),
		Cwd:         d.cwd(m["cwd"], at+".cwd"),
		Environment: d.environment(m["environment"], at+".environment"),
		Executable:  d.executable(m["executable"], at+".executable"),
		Stdin:       d.literal(m["stdin"], at+".stdin", "closed"),
	}
	if len(j.Argv) > 0 && j.Argv[0] != j.Executable.Path {
		d.fail(at+".argv[0]", "must equal the executable's path")
	}
	if n := j.VectorBytes(); n > MaxVectorBytes {
		d.fail(at, "has %d bytes of argv and environment, at most %d", n, MaxVectorBytes)
	}
	return j
}

func (d *decoder) argv(v any, at string) []string {
	items, ok := v.([]any)
	if !ok || len(items) == 0 {
		d.fail(at, "must be an array that is not empty")
		return nil
	}
	argv := make([]string, len(items))
	for i, item := range items {
		field := at + "[" + strconv.Itoa(i) + "]"
		argv[i] = d.text(item, field)
		if len(argv[i]) > MaxStringBytes {
			d.fail(field, "is longer than %d bytes", MaxStringBytes)
		}
	}
	if argv[0] == "" {
		d.fail(at+"[0]", "must not be empty")
	}
	return argv
}

func (d *decoder) environment(v any, at string) map[string]string {
	m, ok := v.(map[string]any)
	if !ok {
		d.fail(at, "must be an object")
	}
	environment := make(map[string]string, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		field := at + "[" + strconv.QuoteToASCII(clip(name)) + "]"
		d.filled(name, field+" name")
		if bytes.ContainsRune([]byte(name), '=') {
			d.fail(field+" name", "must not contain =")
		}
		value := d.text(m[name], field)
		if len(name)+1+len(value) > MaxStringBytes {
			d.fail(field, "is longer than %d bytes", MaxStringBytes)
		}
		environment[name] = value
	}
	return environment
}

func (d *decoder) executable(v any, at string) Executable {
	m := d.object(v, at, "path", "sha256", "bytes")
	return Executable{
		Path:   d.absolutePath(m["path"], at+".path"),
		SHA256: d.sha256(m["sha256"], at+".sha256"),
		Bytes:  d.positive(m["bytes"], at+".bytes"),
	}
}

// VectorBytes is what argv and environment take in the new process: each string
// with its NUL and an 8-byte pointer, and two NULL pointers ("Job").
func (j Job) VectorBytes() int {
	n := (len(j.Argv) + len(j.Environment) + 2) * pointerBytes
	for _, arg := range j.Argv {
		n += len(arg) + 1
	}
	for name, value := range j.Environment {
		n += len(name) + 1 + len(value) + 1
	}
	return n
}

func (j Job) value() any {
	argv := make([]any, len(j.Argv))
	for i, arg := range j.Argv {
		argv[i] = arg
	}
	environment := make(map[string]any, len(j.Environment))
	for name, value := range j.Environment {
		environment[name] = value
	}
	return map[string]any{
		"argv": argv, "cwd": j.Cwd, "environment": environment, "stdin": j.Stdin,
		"executable": map[string]any{
			"path": j.Executable.Path, "sha256": j.Executable.SHA256, "bytes": j.Executable.Bytes,
		},
	}
}

func (d *decoder) sandbox(v any, at string) Sandbox {
	m := d.object(v, at, "policy", "credentials", "network", "hostWrites", "gitHooks", "gitFilters", "timeout", "limits")
	return Sandbox{
		Policy:      d.literal(m["policy"], at+".policy", SandboxPolicy),
		Credentials: d.literal(m["credentials"], at+".credentials", "absent"),
		Network:     d.literal(m["network"], at+".network", "denied"),
		HostWrites:  d.literal(m["hostWrites"], at+".hostWrites", "denied"),
		GitHooks:    d.literal(m["gitHooks"], at+".gitHooks", "disabled"),
		GitFilters:  d.literal(m["gitFilters"], at+".gitFilters", "disabled"),
		Timeout:     d.literal(m["timeout"], at+".timeout", "enforced"),
		Limits:      d.limits(m["limits"], at+".limits"),
	}
}

func (d *decoder) limits(v any, at string) Limits {
	m := d.object(v, at, "wallSeconds", "cpuSeconds", "memoryBytes", "processes", "workspaceBytes", "outputBytes")
	return Limits{
		WallSeconds:    d.positive(m["wallSeconds"], at+".wallSeconds"),
		CPUSeconds:     d.positive(m["cpuSeconds"], at+".cpuSeconds"),
		MemoryBytes:    d.positive(m["memoryBytes"], at+".memoryBytes"),
		Processes:      d.positive(m["processes"], at+".processes"),
		WorkspaceBytes: d.positive(m["workspaceBytes"], at+".workspaceBytes"),
		OutputBytes:    d.positive(m["outputBytes"], at+".outputBytes"),
	}
}

func (s Sandbox) value() any {
	l := s.Limits
	return map[string]any{
		"policy": s.Policy, "credentials": s.Credentials, "network": s.Network, "hostWrites": s.HostWrites,
		"gitHooks": s.GitHooks, "gitFilters": s.GitFilters, "timeout": s.Timeout,
		"limits": map[string]any{
			"wallSeconds": l.WallSeconds, "cpuSeconds": l.CPUSeconds, "memoryBytes": l.MemoryBytes,
			"processes": l.Processes, "workspaceBytes": l.WorkspaceBytes, "outputBytes": l.OutputBytes,
		},
	}
}

func (d *decoder) profile(v any, at string) Profile {
	m := d.object(v, at, "version", "keyId", "signerId", "executorId", "job", "sandbox", "exitCode")
	p := Profile{
		Version:    d.version(m["version"], at+".version"),
		KeyID:      d.match(m["keyId"], at+".keyId", "sha256: and 64 lower-case hex digits", keyIDPattern),
		SignerID:   d.filled(m["signerId"], at+".signerId"),
		ExecutorID: d.filled(m["executorId"], at+".executorId"),
		Job:        d.job(m["job"], at+".job"),
		Sandbox:    d.sandbox(m["sandbox"], at+".sandbox"),
		ExitCode:   d.exitCode(m["exitCode"], at+".exitCode"),
	}
	if d.err == nil {
		if data, err := CanonicalJSON(p.value()); err != nil || len(data) > MaxProfileBytes {
			d.fail(at, "must be at most %d bytes of canonical JSON", MaxProfileBytes)
		}
	}
	return p
}

func (d *decoder) exitCode(v any, at string) int64 { return d.integer(v, at, 0, 255) }

func (p Profile) value() any {
	return map[string]any{
		"version": p.Version, "keyId": p.KeyID, "signerId": p.SignerID, "executorId": p.ExecutorID,
		"job": p.Job.value(), "sandbox": p.Sandbox.value(), "exitCode": p.ExitCode,
	}
}

func (d *decoder) request(v any, at string) Request {
	m := d.object(v, at, "version", "profileName", "profile", "sessionId", "challenge", "target", "action")
	return Request{
		Version: d.version(m["version"], at+".version"),
		ProfileName: d.match(m["profileName"], at+".profileName",
			"a letter or digit and up to 63 letters, digits, '.', '_' or '-'", namePattern),
		Profile:   d.profile(m["profile"], at+".profile"),
		SessionID: d.uuid(m["sessionId"], at+".sessionId"),
		Challenge: d.sha256(m["challenge"], at+".challenge"),
		Target:    d.target(m["target"], at+".target"),
		Action:    d.action(m["action"], at+".action"),
	}
}

// uuid takes any version and variant, and the nil UUID: the text asks only for
// the canonical lower-case form.
func (d *decoder) uuid(v any, at string) string {
	return d.match(v, at, "a canonical lower-case UUID", uuidPattern)
}

func (r Request) value() any {
	return map[string]any{
		"version": r.Version, "profileName": r.ProfileName, "profile": r.Profile.value(),
		"sessionId": r.SessionID, "challenge": r.Challenge, "target": r.Target.value(), "action": r.Action.value(),
	}
}

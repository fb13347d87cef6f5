package attest

import "time"

// Fixed identifiers of version 1 (protocol, "Security model").
const (
	PayloadType                 = "application/vnd.in-toto+json"
	StatementType               = "https://in-toto.io/Statement/v1"
	CapabilityPredicate         = "https://github.com/radkode/underwrite/attestations/host-capability/v1"
	ReceiptPredicate            = "https://github.com/radkode/underwrite/attestations/execution-receipt/v1"
	CapabilitySubject           = "underwrite-execution-input"
	ReceiptSubject              = "underwrite-execution-output"
	SandboxPolicy               = "https://github.com/radkode/underwrite/sandbox-policy/v1"
	MaxCapabilityLifetime       = 300 * time.Second
	MaxInteger            int64 = 1<<53 - 1
)

// Target is the frozen pull request (protocol, "Frozen target"). Its canonical
// JSON is what TargetDigest hashes.
type Target struct {
	Version              int64   `json:"version"` // always 1
	Kind                 string  `json:"kind"`    // always "github_pr"
	Repo                 string  `json:"repo"`    // owner/name
	Number               int64   `json:"number"`
	State                string  `json:"state"`     // "open" or "closed"
	MergedAt             *string `json:"merged_at"` // protocol timestamp, or null
	BaseSHA              string  `json:"base_sha"`  // 40 lower-case hex digits, as the other two commits
	HeadSHA              string  `json:"head_sha"`
	HeadRepoID           *int64  `json:"head_repo_id"` // null together with HeadRepo for a deleted fork
	HeadRepo             *string `json:"head_repo"`
	HeadRef              string  `json:"head_ref"`
	MergeBaseSHA         string  `json:"merge_base_sha"`
	ChangedFiles         int64   `json:"changed_files"`
	DiffSHA256           string  `json:"diff_sha256"` // 64 lower-case hex digits, as the other digests
	DiffBytes            int64   `json:"diff_bytes"`
	TrustedContextSHA256 string  `json:"trusted_context_sha256"`
	TrustedContextBytes  int64   `json:"trusted_context_bytes"`
	ObjectBundleSHA256   string  `json:"object_bundle_sha256"`
	ObjectBundleBytes    int64   `json:"object_bundle_bytes"`
}

// Action numbers one execution within its session (protocol, "Action").
type Action struct {
	Seq     int64 `json:"seq"`
	Beat    int64 `json:"beat"`
	Attempt int64 `json:"attempt"`
}

// Executable is the pinned program of a job (protocol, "Job").
type Executable struct {
	Path   string `json:"path"` // normalized absolute path in the guest
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// Job is exactly what the guest executes (protocol, "Job").
type Job struct {
	Argv        []string          `json:"argv"` // argv[0] equals Executable.Path
	Cwd         string            `json:"cwd"`  // repository-relative, "." is the root
	Environment map[string]string `json:"environment"`
	Executable  Executable        `json:"executable"`
	Stdin       string            `json:"stdin"` // always "closed"
}

// Limits bound the job and all its descendants together (protocol, "Sandbox").
type Limits struct {
	WallSeconds    int64 `json:"wallSeconds"`
	CPUSeconds     int64 `json:"cpuSeconds"`
	MemoryBytes    int64 `json:"memoryBytes"`
	Processes      int64 `json:"processes"` // tasks: threads count, 1 to 4096
	WorkspaceBytes int64 `json:"workspaceBytes"`
	OutputBytes    int64 `json:"outputBytes"` // stdout and stderr together
}

// Sandbox is the fixed list of controls with its limits (protocol, "Sandbox").
// NewSandbox fills in the literals.
type Sandbox struct {
	Policy      string `json:"policy"`
	Credentials string `json:"credentials"`
	Network     string `json:"network"`
	HostWrites  string `json:"hostWrites"`
	GitHooks    string `json:"gitHooks"`
	GitFilters  string `json:"gitFilters"`
	Timeout     string `json:"timeout"`
	Limits      Limits `json:"limits"`
}

// NewSandbox returns the version 1 controls with the given limits.
func NewSandbox(l Limits) Sandbox {
	return Sandbox{
		Policy: SandboxPolicy, Credentials: "absent", Network: "denied", HostWrites: "denied",
		GitHooks: "disabled", GitFilters: "disabled", Timeout: "enforced", Limits: l,
	}
}

// Bundle describes the bytes of an output bundle and the tree it exposes.
type Bundle struct {
	GitTree string `json:"gitTree"`
	SHA256  string `json:"sha256"`
	Bytes   int64  `json:"bytes"`
}

// Stream describes one complete captured stream. Truncated is always false in
// an authentic receipt.
type Stream struct {
	SHA256    string `json:"sha256"`
	Bytes     int64  `json:"bytes"`
	Truncated bool   `json:"truncated"`
}

// Profile is the trusted execution profile of the protocol's validator
// contract: who signs and what runs.
type Profile struct {
	Version    int64   `json:"version"` // always 1
	KeyID      string  `json:"keyId"`   // "sha256:" and 64 hex digits of the DER public key
	SignerID   string  `json:"signerId"`
	ExecutorID string  `json:"executorId"`
	Job        Job     `json:"job"`
	Sandbox    Sandbox `json:"sandbox"`
	ExitCode   int64   `json:"exitCode"` // 0 to 255
}

// Request is one reserved execution, the content of request.json. The protocol
// leaves its shape to the implementation: this one repeats the trusted profile
// and adds the session, the target and the action. Its canonical JSON is what
// the controller stores and the gateway returns byte for byte.
type Request struct {
	Version     int64   `json:"version"`     // always 1
	ProfileName string  `json:"profileName"` // the gateway's name for the accepted profile
	Profile     Profile `json:"profile"`     // as it is to run: with proof arguments and prediction
	SessionID   string  `json:"sessionId"`   // canonical lower-case UUID
	Challenge   string  `json:"challenge"`   // 64 lower-case hex digits, never reused
	Target      Target  `json:"target"`
	Action      Action  `json:"action"`
}

// Expected is the trusted context of a capability, established by the caller
// from its own records and never from an envelope (protocol, "Validator
// contract").
type Expected struct {
	SignerID   string
	ExecutorID string
	SessionID  string
	Challenge  string
	Target     Target
	Action     Action
	Job        Job
	InputTree  string // 64 lower-case hex digits
	Sandbox    Sandbox
}

// ExpectedReceipt adds what the caller derived from the returned artifacts.
type ExpectedReceipt struct {
	Expected
	OutputTree   string
	OutputBundle Bundle
	Stdout       Stream
	Stderr       Stream
	ExitCode     int64
}

// SignatureVerifier checks one signature over the PAE bytes and returns the
// stable trusted identity of the key that verified it. keyID is an
// unauthenticated hint.
type SignatureVerifier func(pae []byte, keyID string, signature []byte) (signerID string, err error)

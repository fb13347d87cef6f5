package attest

import (
	"errors"
	"fmt"
)

// Errors of reading and of the schema.
var (
	// ErrJSON: the bytes are not one strict JSON value ("Canonical JSON").
	ErrJSON = errors.New("malformed JSON")
	// ErrSchema: a value does not have the shape that the protocol gives it. A
	// *FieldError names the field, where there is one.
	ErrSchema = errors.New("invalid document")
	// ErrNotCanonical: a request is valid but not written as canonical JSON.
	ErrNotCanonical = errors.New("not in canonical form")
	// ErrBase64: a field is not canonical padded base64 ("DSSE envelope").
	ErrBase64 = errors.New("malformed base64")
	// ErrTimestamp: a text is not a protocol timestamp ("Canonical JSON"). The
	// validator returns it, too, for a time of a statement (steps 5 and 7).
	ErrTimestamp = errors.New("malformed timestamp")
	// ErrKey: a key is not one usable P-256 public key.
	ErrKey = errors.New("unusable public key")
)

// Errors of the validator, one for each claim ("Validator contract"). A
// returned error wraps exactly one of them, or ErrTimestamp, and names the field;
// a failing member of the invocation wraps ErrInvocation besides its own.
var (
	// ErrExpected: the caller's own context is invalid. Nothing was checked.
	ErrExpected = errors.New("invalid expected context")

	// Step 1.
	ErrEnvelope = errors.New("malformed DSSE envelope")
	// Step 2.
	ErrSignature = errors.New("signature verification failed")
	// Step 3.
	ErrSigner   = errors.New("signer is not the expected one")
	ErrExecutor = errors.New("executor is not the expected one")
	// Step 4.
	ErrPayloadType   = errors.New("payload type is not the in-toto one")
	ErrPayload       = errors.New("payload is not a strict JSON object")
	ErrStatement     = errors.New("malformed in-toto Statement")
	ErrStatementType = errors.New("wrong Statement type")
	ErrPredicateType = errors.New("wrong predicate type")
	ErrPredicate     = errors.New("malformed predicate")
	// Step 5; ErrSubject and ErrInvocation also in steps 6 and 8.
	ErrSubject      = errors.New("subject is not the expected tree")
	ErrInvocation   = errors.New("invocation is not the expected one")
	ErrSession      = errors.New("session or challenge differs")
	ErrTarget       = errors.New("target document differs")
	ErrTargetDigest = errors.New("target digest differs")
	ErrSourceBundle = errors.New("source bundle differs")
	ErrAction       = errors.New("action differs")
	ErrJob          = errors.New("job differs")
	ErrJobDigest    = errors.New("job digest differs")
	ErrInputTree    = errors.New("input tree differs")
	ErrSandbox      = errors.New("sandbox differs")
	ErrLifetime     = errors.New("capability lifetime is not above 0 and at most 300 s")
	ErrNotCurrent   = errors.New("capability is not current")
	// Step 6.
	ErrLink = errors.New("receipt does not link this capability")
	// Step 7.
	ErrStarted     = errors.New("job did not start within the capability's lifetime")
	ErrFinished    = errors.New("job did not finish between its start and now")
	ErrWallLimit   = errors.New("job ran longer than its wall limit")
	ErrResult      = errors.New("result is not a clean exit")
	ErrExitCode    = errors.New("exit code is not the expected one")
	ErrStreams     = errors.New("streams are not the expected ones")
	ErrOutputLimit = errors.New("streams exceed the output limit")
	// Step 8.
	ErrOutputTree   = errors.New("output tree is not the expected one")
	ErrOutputBundle = errors.New("output bundle is not the expected one")
)

// FieldError names the field of a document that breaks a rule. Field is a path
// such as "target.head_sha" or "job.argv[2]"; a key in it is quoted when it
// came from outside.
type FieldError struct {
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// ExitCodeError says which exit code an otherwise valid receipt has. It wraps
// ErrExitCode.
type ExitCodeError struct {
	Expected int64
	Observed int64 // 0 to 255
}

func (e *ExitCodeError) Error() string {
	return fmt.Sprintf("%v: %d, expected %d", ErrExitCode, e.Observed, e.Expected)
}

// Unwrap returns ErrExitCode.
func (e *ExitCodeError) Unwrap() error { return ErrExitCode }

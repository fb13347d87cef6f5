package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of the frames, in bytes.
const (
	MaxRequestBytes = 384 << 10 // a canonical request (protocol, "Validator contract")
	MaxProfileBytes = 256 << 10 // a canonical profile (the same section)
	MaxHeaderBytes  = 8 << 10   // the client's header line
	MaxLineBytes    = 256 << 10 // any other line: an event with live output is the longest
	MaxReasonBytes  = 2 << 10   // an outcome's reason
)

// Version is the version of the socket protocol and of the outcome.
const Version = 1

// Operation is what a client asks of the gateway.
type Operation string

// The operations.
const (
	// OpExecute is followed by RequestBytes bytes of request and BundleBytes
	// bytes of source bundle. Replies are any number of events and one outcome.
	OpExecute Operation = "execute"
	// OpAcknowledge says that the evidence in EvidenceDir is durably consumed.
	// The reply is Acknowledged or Error.
	OpAcknowledge Operation = "acknowledge"
)

// Header is the first line of a connection, sent by the client. One connection
// carries one operation; closing it cancels the operation.
type Header struct {
	Version      int       `json:"version"`
	Op           Operation `json:"op"`
	RequestBytes int64     `json:"requestBytes,omitempty"`
	BundleBytes  int64     `json:"bundleBytes,omitempty"`
	EvidenceDir  string    `json:"evidenceDir,omitempty"`
}

// Reply is one line of the gateway's answer: exactly one field is set, and
// every one but Event ends the conversation.
type Reply struct {
	Event        *Event   `json:"event,omitempty"`
	Outcome      *Outcome `json:"outcome,omitempty"`
	Acknowledged bool     `json:"acknowledged,omitempty"`
	Error        string   `json:"error,omitempty"` // the operation was not handled; it may be tried again
}

// ErrFrame: a line or header that is not what the protocol of the socket says.
var ErrFrame = errors.New("malformed frame")

// ExitCode is the exit code of `underwrite execute` that belongs to the outcome.
func (o Outcome) ExitCode() int {
	switch o.Status {
	case Complete:
		return 0
	case Failed:
		return 2
	default:
		return 1
	}
}

// Check reports whether o is one of the three outcomes, complete and bounded.
func (o Outcome) Check() error {
	switch {
	case o.Version != Version:
		return fmt.Errorf("%w: outcome version %d", ErrFrame, o.Version)
	case o.Status == Complete && (!filepath.IsAbs(o.EvidenceDir) || o.Reason != ""):
		return fmt.Errorf("%w: complete outcome without an absolute evidenceDir, or with a reason", ErrFrame)
	case o.Status == Complete:
		return nil
	case o.Status != Retry && o.Status != Failed:
		return fmt.Errorf("%w: outcome status %q", ErrFrame, o.Status)
	case o.EvidenceDir != "" || o.Reason == "" || len(o.Reason) > MaxReasonBytes:
		return fmt.Errorf("%w: %s outcome wants a bounded reason and nothing else", ErrFrame, o.Status)
	}
	return nil
}

// NewOutcome returns a retry or failed outcome whose reason is one bounded line
// without control characters, whatever went into it.
func NewOutcome(s Status, reason string) Outcome {
	return Outcome{Version: Version, Status: s, Reason: oneLine(reason, MaxReasonBytes)}
}

func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if s == "" {
		return "unknown reason"
	}
	for len(s) > limit {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// Line encodes the outcome as its one JSON line, with the newline.
func (o Outcome) Line() []byte { return line(o) }

// ParseOutcome reads the one JSON line of `underwrite execute`. Anything else
// (nothing, two lines, an unknown field) is ErrFrame: the caller then knows
// nothing and has to try again.
func ParseOutcome(b []byte) (Outcome, error) {
	var o Outcome
	b, ok := bytes.CutSuffix(b, []byte("\n"))
	if !ok || bytes.ContainsRune(b, '\n') {
		return Outcome{}, fmt.Errorf("%w: outcome is not one line", ErrFrame)
	}
	if err := decode(b, &o); err != nil {
		return Outcome{}, err
	}
	return o, o.Check()
}

// ReadEvents calls f for each event line of r until EOF. A malformed or
// oversized line is dropped: events are never trusted and never needed.
func ReadEvents(r io.Reader, f func(Event)) error {
	br := bufio.NewReaderSize(r, 4<<10)
	for {
		b, err := readLine(br, MaxLineBytes)
		if err != nil && !errors.Is(err, ErrFrame) {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var e Event
		if err == nil && decode(b, &e) == nil {
			f(e)
		}
	}
}

// ReadHeader reads and checks the client's header line.
func ReadHeader(r *bufio.Reader) (Header, error) {
	b, err := readLine(r, MaxHeaderBytes)
	if err != nil {
		return Header{}, err
	}
	var h Header
	if err := decode(b, &h); err != nil {
		return Header{}, err
	}
	return h, h.check()
}

func (h Header) check() error {
	if h.Version != Version {
		return fmt.Errorf("%w: header version %d", ErrFrame, h.Version)
	}
	switch h.Op {
	case OpExecute:
		if h.RequestBytes < 1 || h.RequestBytes > MaxRequestBytes || h.BundleBytes < 1 || h.EvidenceDir != "" {
			return fmt.Errorf("%w: execute wants 1 to %d requestBytes and positive bundleBytes", ErrFrame, MaxRequestBytes)
		}
	case OpAcknowledge:
		if !filepath.IsAbs(h.EvidenceDir) || h.RequestBytes != 0 || h.BundleBytes != 0 {
			return fmt.Errorf("%w: acknowledge wants an absolute evidenceDir", ErrFrame)
		}
	default:
		return fmt.Errorf("%w: operation %q", ErrFrame, h.Op)
	}
	return nil
}

// readReply reads and checks one line of the gateway's answer.
func readReply(r *bufio.Reader) (Reply, error) {
	b, err := readLine(r, MaxLineBytes)
	if err != nil {
		return Reply{}, err
	}
	var reply Reply
	if err := decode(b, &reply); err != nil {
		return Reply{}, err
	}
	return reply, reply.check()
}

func (r Reply) check() error {
	var set int
	for _, is := range []bool{r.Event != nil, r.Outcome != nil, r.Acknowledged, r.Error != ""} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("%w: reply with %d fields", ErrFrame, set)
	}
	if r.Outcome != nil {
		return r.Outcome.Check()
	}
	return nil
}

// WriteReply writes one line of the gateway's answer.
func WriteReply(w io.Writer, r Reply) error {
	_, err := w.Write(line(r))
	return err
}

func line(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // no type of this package holds anything that cannot be encoded
		panic("wire: " + err.Error())
	}
	return append(b, '\n')
}

// readLine reads one line of at most limit bytes, without its newline. After
// ErrFrame the reader stands behind the oversized line. io.EOF means that
// nothing is left; a last line without a newline is io.ErrUnexpectedEOF.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var b []byte
	var tooLong bool
	for {
		part, err := r.ReadSlice('\n')
		if tooLong = tooLong || len(b)+len(part) > limit; !tooLong {
			b = append(b, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && (len(b) > 0 || tooLong):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case tooLong:
			return nil, fmt.Errorf("%w: line of more than %d bytes", ErrFrame, limit)
		default:
			return b[:len(b)-1], nil
		}
	}
}

func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %v", ErrFrame, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: bytes after the object", ErrFrame)
	}
	return nil
}

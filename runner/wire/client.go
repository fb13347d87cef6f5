package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// Client speaks to the gateway through its Unix socket. Its methods may be
// used concurrently: each opens its own connection.
type Client struct {
	Socket string // absolute path of the gateway's socket
}

// Execute sends one request with its source bundle and waits for the outcome.
// events, if not nil, is called for each event, never concurrently.
//
// An error means that nothing is known about the execution: try the same
// request again. Cancelling ctx closes the connection, which makes the gateway
// stop the run, and returns ctx's error; the same request then ends as Failed if
// its job had started.
func (c *Client) Execute(ctx context.Context, request []byte, bundlePath string, events func(Event)) (Outcome, error) {
	bundle, err := os.Open(bundlePath)
	if err != nil {
		return Outcome{}, fmt.Errorf("source bundle: %w", err)
	}
	defer bundle.Close()
	info, err := bundle.Stat()
	if err != nil {
		return Outcome{}, fmt.Errorf("source bundle: %w", err)
	}
	h := Header{Version: Version, Op: OpExecute, RequestBytes: int64(len(request)), BundleBytes: info.Size()}
	var outcome Outcome
	err = c.talk(ctx, h, func(w io.Writer) error {
		if _, err := w.Write(request); err != nil {
			return err
		}
		_, err := io.CopyN(w, bundle, info.Size())
		return err
	}, func(r Reply) error {
		switch {
		case r.Event != nil && events != nil:
			events(*r.Event)
		case r.Outcome != nil:
			outcome = *r.Outcome
		case r.Acknowledged:
			return fmt.Errorf("%w: acknowledged an execution", ErrFrame)
		}
		return nil
	})
	return outcome, err
}

// Acknowledge tells the gateway that the evidence in evidenceDir is durably
// consumed, so that it may remove it. Acknowledging a directory that is gone
// already is no error.
func (c *Client) Acknowledge(ctx context.Context, evidenceDir string) error {
	h := Header{Version: Version, Op: OpAcknowledge, EvidenceDir: evidenceDir}
	return c.talk(ctx, h, nil, func(r Reply) error {
		if !r.Acknowledged {
			return fmt.Errorf("%w: unexpected answer to an acknowledgement", ErrFrame)
		}
		return nil
	})
}

// talk sends the header and the body and calls each for every reply until the
// last one.
func (c *Client) talk(ctx context.Context, h Header, body func(io.Writer) error, each func(Reply) error) (err error) {
	if err := h.check(); err != nil {
		return err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if !stop() && ctx.Err() != nil && err != nil {
			err = ctx.Err()
		}
		conn.Close()
	}()
	_, sent := conn.Write(line(h))
	if sent == nil && body != nil {
		sent = body(conn)
	}
	// A gateway that refuses does not read on: its reason is worth more than
	// the broken pipe.
	if err := replies(bufio.NewReaderSize(conn, 4<<10), each); err != nil {
		return fmt.Errorf("gateway: %w", errors.Join(err, sent))
	}
	return nil
}

func replies(r *bufio.Reader, each func(Reply) error) error {
	for {
		reply, err := readReply(r)
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("connection closed without an outcome: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return err
		}
		if reply.Error != "" {
			return errors.New(reply.Error)
		}
		if err := each(reply); err != nil || reply.Event == nil {
			return err
		}
	}
}

package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"underwrite/runner/policy"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

// Bounds of a connection.
const (
	maxConnections = 256
	headerTimeout  = 10 * time.Second // for the header line
	idleTimeout    = 60 * time.Second // without a byte of request or bundle
	replyTimeout   = 10 * time.Second // for the client to take one line
)

// Options configure Serve.
type Options struct {
	ConfigPath string // absolute path of the gateway's configuration
	Socket     string // absolute path of the socket to listen on
	// Execute is the program and its first arguments to which the flags of
	// `underwrite execute` are added, e.g. {"/proc/self/exe", "execute"}.
	Execute []string
	Log     zerolog.Logger
	// Ready, if not nil, is called once the socket accepts connections.
	Ready func(net.Addr)
}

type server struct {
	Options
	config *policy.Config
	slots  *semaphore.Weighted // executions at once
	memory *semaphore.Weighted // bytes of their memory limits together
}

// Serve runs the gateway until ctx is cancelled; then it stops the executions,
// waits for them and returns nil. One gateway at a time serves a state
// directory.
func Serve(ctx context.Context, o Options) error {
	config, err := policy.Load(o.ConfigPath)
	if err != nil {
		return err
	}
	if _, err := config.KeyID(); err != nil {
		return err
	}
	lock, err := ledger.Acquire(config.LocksDir(), "gateway")
	if errors.Is(err, ledger.ErrBusy) {
		return fmt.Errorf("another gateway serves %s: stop it first", config.State)
	}
	if err != nil {
		return fmt.Errorf("%w (make the state directory with `underwrite gateway init`)", err)
	}
	defer lock.Release()
	s := &server{
		Options: o, config: config,
		slots:  semaphore.NewWeighted(int64(config.Concurrency)),
		memory: semaphore.NewWeighted(config.MemoryBudgetBytes),
	}
	if err := s.tidy(); err != nil {
		return err
	}
	l, err := s.listen()
	if err != nil {
		return err
	}
	o.Log.Info().Str("socket", o.Socket).Int("profiles", len(config.Profiles)).Msg("gateway listens")
	if o.Ready != nil {
		o.Ready(l.Addr())
	}
	s.accept(ctx, l)
	return nil
}

// tidy removes what an earlier gateway left half received or half removed.
func (s *server) tidy() error {
	left, err := os.ReadDir(s.config.SpoolDir())
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(s.config.SpoolDir(), e.Name())); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
	}
	return removeTrash(s.config.Outbox)
}

// listen replaces a socket that nobody serves. Who may talk is decided by the
// peer's user, so the socket's own mode only keeps other groups away.
func (s *server) listen() (*net.UnixListener, error) {
	if info, err := os.Lstat(s.Socket); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s exists and is no socket: remove it or choose another path", s.Socket)
		}
		if err := os.Remove(s.Socket); err != nil {
			return nil, fmt.Errorf("stale socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.Socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	mode := os.FileMode(0o666)
	if gid := s.config.GID(); gid >= 0 {
		mode = 0o660
		err = os.Lchown(s.Socket, -1, gid)
	}
	if err = errors.Join(err, os.Chmod(s.Socket, mode)); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return l, nil
}

func (s *server) accept(ctx context.Context, l *net.UnixListener) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	places := semaphore.NewWeighted(maxConnections)
	for {
		if places.Acquire(ctx, 1) != nil {
			return
		}
		conn, err := l.AcceptUnix()
		if err != nil {
			places.Release(1)
			if ctx.Err() != nil {
				return
			}
			s.Log.Error().Err(err).Msg("accept")
			time.Sleep(100 * time.Millisecond) // out of descriptors: let some go
			continue
		}
		wg.Go(func() {
			defer places.Release(1)
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.CloseRead() })()
			s.serve(ctx, conn)
		})
	}
}

// serve handles one connection. What it returns to the client is in the reply.
func (s *server) serve(ctx context.Context, conn *net.UnixConn) {
	uid, err := peerUID(conn)
	if err != nil || !slices.Contains(s.config.AllowedUIDs, uid) {
		s.Log.Warn().Err(err).Int("uid", uid).Msg("peer refused")
		s.reply(conn, wire.Reply{Error: fmt.Sprintf("uid %d is not in the gateway's allowedUids", uid)})
		return
	}
	conn.SetReadDeadline(time.Now().Add(headerTimeout))
	r := bufio.NewReaderSize(conn, 32<<10)
	h, err := wire.ReadHeader(r)
	if err != nil {
		s.reply(conn, wire.Reply{Error: "header: " + err.Error()})
		return
	}
	switch h.Op {
	case wire.OpExecute:
		err = s.execute(ctx, conn, r, h)
	case wire.OpAcknowledge:
		err = s.acknowledge(conn, h.EvidenceDir)
	}
	if err != nil {
		s.Log.Error().Err(err).Str("op", string(h.Op)).Int("uid", uid).Msg("not handled")
		s.reply(conn, wire.Reply{Error: err.Error()})
	}
}

// reply sends one line. A client that is gone learns the outcome by trying the
// same request again.
func (s *server) reply(conn net.Conn, r wire.Reply) error {
	conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	return wire.WriteReply(conn, r)
}

// peerUID asks the kernel who connected.
func peerUID(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, inner); err != nil {
		return -1, fmt.Errorf("peer credentials: %w", err)
	}
	return int(cred.Uid), nil
}

// spool is a private directory with what one client sent.
type spool struct {
	dir           string
	request       []byte
	requestPath   string
	bundlePath    string
	bundleSkipped bool
}

// receive writes request and bundle into a new spool directory. A bundle beyond
// the limit is not read: the execution refuses its request, and for good.
func (s *server) receive(conn net.Conn, r io.Reader, h wire.Header) (*spool, error) {
	dir, err := os.MkdirTemp(s.config.SpoolDir(), "request-")
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	sp := &spool{dir: dir, requestPath: filepath.Join(dir, "request.json"), bundlePath: filepath.Join(dir, "source.bundle")}
	r = &idleReader{conn, r}
	sp.request = make([]byte, h.RequestBytes)
	_, err = io.ReadFull(r, sp.request)
	if err == nil {
		err = os.WriteFile(sp.requestPath, sp.request, 0o600)
	}
	if sp.bundleSkipped = h.BundleBytes > s.config.SourceBundleBytes; sp.bundleSkipped {
		h.BundleBytes = 0
	}
	if err == nil {
		err = writeExactly(sp.bundlePath, r, h.BundleBytes)
	}
	if err != nil {
		sp.remove()
		return nil, fmt.Errorf("receive request and bundle: %w", err)
	}
	return sp, nil
}

func (sp *spool) remove() { os.RemoveAll(sp.dir) }

func writeExactly(path string, r io.Reader, n int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, r, n)
	return errors.Join(err, f.Close())
}

// idleReader allows any length of transfer as long as bytes keep coming.
type idleReader struct {
	conn net.Conn
	r    io.Reader
}

func (r *idleReader) Read(p []byte) (int, error) {
	r.conn.SetReadDeadline(time.Now().Add(idleTimeout))
	return r.r.Read(p)
}

package confine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// asUser names the environment variable under which the test binary runs its
// tests once more, as an ordinary user.
const asUser = "UNDERWRITE_TEST_AS_USER"

func TestMain(m *testing.M) {
	MaybeExec()
	os.Exit(m.Run())
}

// TestAsOrdinaryUser repeats every test of this package as uid 65534, which is
// how the production controller runs.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: the other tests run as an ordinary user already")
	}
	dir, err := os.MkdirTemp("/tmp", "confine-user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := filepath.Join(dir, "confine.test")
	copyFile(t, "/proc/self/exe", binary, 0o755)
	for _, name := range []string{dir, filepath.Join(dir, "tmp")} {
		os.MkdirAll(name, 0o755)
		if err := os.Chown(name, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary, "-test.v", "-test.timeout=5m")
	cmd.Dir = dir
	cmd.Env = []string{asUser + "=1", "TMPDIR=" + filepath.Join(dir, "tmp"), "PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "CI=" + os.Getenv("CI")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as uid 65534: %v\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("--- PASS: TestSeesOnlyItsDirectories")) {
		t.Fatalf("the tests did not run as uid 65534:\n%s", out)
	}
}

// eachIdentity runs the test under every identity that this caller can have.
func eachIdentity(t *testing.T, f func(t *testing.T)) {
	for _, id := range identities() {
		t.Run(string(id), func(t *testing.T) {
			forced = []Identity{id}
			t.Cleanup(func() { forced = nil })
			f(t)
		})
	}
}

// private makes a directory of mode 0700 below a parent of mode 0700.
func private(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "parent", "dir")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func sh(script string, readWrite ...string) Spec {
	return Spec{Argv: []string{"sh", "-c", script}, ReadWrite: readWrite, Timeout: time.Minute}
}

// output runs the spec and returns its stdout.
func output(t *testing.T, spec Spec) string {
	t.Helper()
	var out bytes.Buffer
	spec.Stdout = &out
	if err := Run(t.Context(), spec); err != nil {
		t.Fatalf("%q: %v", spec.Argv, err)
	}
	return out.String()
}

func TestCheckNamesWhatHolds(t *testing.T) {
	got, err := Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Identity != identities()[0] || !got.Mounts || !got.PIDs || !got.NetworkNS || !got.Seccomp {
		t.Errorf("controls = %+v, want the strongest of this caller", got)
	}
	forced = []Identity{CallerUID}
	defer func() { forced = nil }()
	if os.Getuid() == 0 {
		return
	}
	weak, err := Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if weak.Mounts || weak.PIDs || weak.NetworkNS || !weak.Seccomp || weak.LandlockABI < minLandlockABI {
		t.Errorf("controls = %+v, want Landlock and seccomp alone", weak)
	}
}

func TestSeesOnlyItsDirectories(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		work, input, secret := private(t), private(t), private(t)
		for _, dir := range []string{input, secret} {
			if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		spec := sh(fmt.Sprintf(`
			cat %[2]s/file > %[1]s/copy || exit 1
			mkdir %[1]s/sub && mv %[1]s/copy %[1]s/sub/ || exit 2
			if cat %[3]s/file; then exit 3; fi
			if echo x > %[2]s/new; then exit 4; fi
			if echo x > %[2]s/file; then exit 5; fi
			if echo x > %[3]s/new; then exit 6; fi
			if echo x > /tmp/underwrite-confine-test; then exit 7; fi
			if cat /etc/hostname /etc/shadow /proc/1/environ; then exit 8; fi
			if ls /root /home /proc /sys; then exit 9; fi
		`, work, input, secret), work)
		spec.ReadOnly, spec.Dir = []string{input}, work
		if err := Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(work, "sub", "copy"))
		if err != nil || string(got) != "content" {
			t.Fatalf("result = %q, %v", got, err)
		}
		st, err := os.Stat(filepath.Join(work, "sub", "copy"))
		if err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			t.Errorf("the result is not the caller's: %v, %v", st.Sys(), err)
		}
	})
}

func TestGitCannotReadAnotherRepository(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		work, other := filepath.Join(private(t), "a.git"), filepath.Join(private(t), "b.git")
		for _, dir := range []string{work, other} {
			os.Mkdir(dir, 0o700)
			output(t, Git(dir, "init", "--quiet", "--bare", "--template=", dir))
		}
		// The repository's own configuration and alternates point outside.
		os.WriteFile(filepath.Join(work, "objects", "info", "alternates"), []byte(other+"/objects\n"), 0o600)
		hash := Git(other, "hash-object", "-w", "--stdin")
		hash.Stdin = strings.NewReader("secret")
		id := strings.TrimSpace(output(t, hash))
		if got := output(t, Git(other, "cat-file", "blob", id)); got != "secret" {
			t.Fatalf("own repository: %q", got)
		}
		var exit *ExitError
		if err := Run(t.Context(), Git(work, "cat-file", "blob", id)); !errors.As(err, &exit) {
			t.Fatalf("through alternates: %v, want an exit error", err)
		}
		fetch := Git(work, "-c", "protocol.file.allow=always", "fetch", other, "+refs/*:refs/*")
		if err := Run(t.Context(), fetch); !errors.As(err, &exit) {
			t.Fatalf("fetch of another path: %v, want an exit error", err)
		}
	})
}

func TestIdentityIsThrownAway(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		uid := strings.TrimSpace(output(t, sh("id -u")))
		switch forced[0] {
		case ThrowAwayUID:
			if len(uid) != len("1900000000") || uid[:3] != "190" {
				t.Errorf("uid = %s, want one of the throw-away range", uid)
			}
		case UserNamespace:
			if uid != "0" {
				t.Errorf("uid = %s, want 0 of the namespace", uid)
			}
		}
		// Mounting, changing owners and chroot need the capabilities it lacks.
		work := private(t)
		if err := Run(t.Context(), sh("chroot / true", work)); err == nil {
			t.Error("chroot worked: the tool has capabilities")
		}
		if err := Run(t.Context(), sh("unshare -U true", work)); err == nil {
			t.Error("unshare worked: the tool can make namespaces")
		}
	})
}

func TestNetwork(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var accepted atomic.Int64
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			fmt.Fprint(c, "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
			c.Close()
		}
	}()
	eachIdentity(t, func(t *testing.T) {
		dir := filepath.Join(private(t), "a.git")
		os.Mkdir(dir, 0o700)
		output(t, Git(dir, "init", "--quiet", "--bare", "--template=", dir))
		remote := func(network bool) error {
			spec := Git(dir, "-c", "protocol.http.allow=always", "ls-remote", "http://"+listener.Addr().String()+"/r")
			spec.Network = network
			return Run(t.Context(), spec)
		}
		accepted.Store(0)
		if err := remote(true); err != nil || accepted.Load() == 0 {
			t.Errorf("with network: %v, %d connections", err, accepted.Load())
		}
		accepted.Store(0)
		var exit *ExitError
		if err := remote(false); !errors.As(err, &exit) || accepted.Load() != 0 {
			t.Errorf("without network: %v, %d connections", err, accepted.Load())
		}
	})
}

func TestEnvironmentIsExact(t *testing.T) {
	t.Setenv("GIT_DIR", "/somewhere")
	t.Setenv("SECRET_TOKEN", "do not pass on")
	eachIdentity(t, func(t *testing.T) {
		spec := Spec{Argv: []string{"env"}, Env: []string{"A=1", "HOME=/x", "B=two words"}}
		got := strings.Split(strings.TrimSpace(output(t, spec)), "\n")
		slices.Sort(got)
		want := []string{"A=1", "B=two words", "HOME=/x", "LC_ALL=C", "PATH=" + toolPath}
		if !slices.Equal(got, want) {
			t.Errorf("environment = %q, want %q", got, want)
		}
	})
}

func TestEndings(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		var exit *ExitError
		if err := Run(t.Context(), sh("echo why >&2; exit 7")); !errors.As(err, &exit) || exit.Code != 7 || exit.Stderr != "why" {
			t.Errorf("exit: %v", err)
		}
		if err := Run(t.Context(), sh("kill -TERM $$; sleep 60")); !errors.As(err, &exit) || exit.Code != -1 || exit.Signal != int(syscall.SIGTERM) {
			t.Errorf("signal: %v", err)
		}
		if err := Run(t.Context(), Spec{Argv: []string{"underwrite-no-such-tool"}}); err == nil || errors.As(err, &exit) {
			t.Errorf("missing tool: %v, want an error that is no exit", err)
		}
		noisy := sh("yes error | head -c 1000000 >&2; exit 1")
		if err := Run(t.Context(), noisy); !errors.As(err, &exit) || len(exit.Stderr) > maxStderr || len(exit.Stderr) < maxStderr/2 {
			t.Errorf("stderr of %d bytes kept, err %T", len(exit.Stderr), err)
		}
	})
}

func TestOutputCap(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		for _, tt := range []struct {
			bytes int
			want  error
		}{{1000, nil}, {1001, ErrOutput}, {5_000_000, ErrOutput}} {
			var out bytes.Buffer
			spec := sh(fmt.Sprintf("head -c %d /dev/zero; sleep 0.1", tt.bytes))
			spec.Stdout, spec.MaxStdout = &out, 1000
			if err := Run(t.Context(), spec); !errors.Is(err, tt.want) {
				t.Errorf("%d bytes: err = %v, want %v", tt.bytes, err, tt.want)
			}
			if out.Len() != 1000 {
				t.Errorf("%d bytes: %d passed on, want 1000", tt.bytes, out.Len())
			}
		}
	})
}

func TestLimits(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		work := private(t)
		spec := sh("ulimit -Hc; ulimit -Hf; ulimit -Hv; ulimit -Hn", work)
		spec.MaxFileBytes, spec.MaxMemory = 1<<20, 64<<20
		if got, want := output(t, spec), fmt.Sprintf("0\n%d\n%d\n%d\n", 1<<20/512, 64<<20/1024, maxOpenFiles); got != want {
			t.Errorf("limits = %q, want %q", got, want)
		}
		spec = sh("head -c 2000000 /dev/zero > "+work+"/big", work)
		spec.MaxFileBytes = 1 << 20
		if err := Run(t.Context(), spec); err == nil {
			t.Error("a file above the limit was written")
		}
		if st, err := os.Stat(filepath.Join(work, "big")); err != nil || st.Size() > 1<<20 {
			t.Errorf("big file: %v, %v", st, err)
		}
	})
}

// TestDescendantsDie lets a tool leave a process in its own session that writes
// to a file for ever, and checks that the file stops growing.
func TestDescendantsDie(t *testing.T) {
	const leave = `setsid sh -c 'while :; do echo x >> %s/beat; sleep 0.01; done' >/dev/null 2>&1 & `
	eachIdentity(t, func(t *testing.T) {
		tests := []struct {
			name string
			end  string
			run  func(ctx context.Context, s Spec) error
			want error
		}{
			{"the tool ends", "sleep 0.2", Run, nil},
			{"timeout", "sleep 60", func(ctx context.Context, s Spec) error {
				s.Timeout = 300 * time.Millisecond
				return Run(ctx, s)
			}, ErrTimeout},
			{"cancel", "sleep 60", func(ctx context.Context, s Spec) error {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(300*time.Millisecond, cancel)
				return Run(ctx, s)
			}, context.Canceled},
			{"output", "sleep 0.2; yes", func(ctx context.Context, s Spec) error {
				s.Stdout, s.MaxStdout = io.Discard, 100
				return Run(ctx, s)
			}, ErrOutput},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				work := private(t)
				err := tt.run(t.Context(), sh(fmt.Sprintf(leave, work)+tt.end, work))
				if !errors.Is(err, tt.want) {
					t.Fatalf("err = %v, want %v", err, tt.want)
				}
				mustStandStill(t, filepath.Join(work, "beat"), tt.name == "the tool ends" || tt.name == "output")
			})
		}
	})
}

// mustStandStill fails if the file still grows. Where the tool lived long
// enough by its own clock, the file must exist, or nothing was tested.
func mustStandStill(t *testing.T, path string, mustExist bool) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil && mustExist {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	after, _ := os.ReadFile(path)
	if len(after) != len(before) {
		t.Errorf("a descendant is alive: %d bytes, then %d", len(before), len(after))
	}
}

func TestConversation(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		dir := filepath.Join(private(t), "a.git")
		os.Mkdir(dir, 0o700)
		output(t, Git(dir, "init", "--quiet", "--bare", "--template=", dir))
		hash := Git(dir, "hash-object", "-w", "--stdin")
		hash.Stdin = strings.NewReader("hello")
		id := strings.TrimSpace(output(t, hash))

		p, err := Start(t.Context(), Git(dir, "cat-file", "--batch"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Kill()
		r := bufio.NewReader(p.Stdout)
		for range 3 {
			fmt.Fprintln(p.Stdin, id)
			line, _ := r.ReadString('\n')
			body := make([]byte, 6)
			if _, err := io.ReadFull(r, body); err != nil || line != id+" blob 5\n" || string(body) != "hello\n" {
				t.Fatalf("answer = %q %q, %v", line, body, err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestConversationCap(t *testing.T) {
	spec := sh("yes")
	spec.MaxStdout = 100
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(p.Stdout)
	if len(got) != 100 || !errors.Is(err, ErrOutput) {
		t.Errorf("read %d bytes, %v, want 100 and ErrOutput", len(got), err)
	}
	if err := p.Close(); !errors.Is(err, ErrOutput) {
		t.Errorf("Close = %v, want ErrOutput", err)
	}
}

func TestStdin(t *testing.T) {
	eachIdentity(t, func(t *testing.T) {
		spec := sh("wc -c")
		spec.Stdin = io.LimitReader(zeros{}, 3_000_000)
		if got := strings.TrimSpace(output(t, spec)); got != "3000000" {
			t.Errorf("reader: %s bytes arrived", got)
		}
		path := filepath.Join(t.TempDir(), "in")
		os.WriteFile(path, []byte("12345"), 0o600)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		spec.Stdin = f
		if got := strings.TrimSpace(output(t, spec)); got != "5" {
			t.Errorf("file: %s bytes arrived", got)
		}
		early := sh("exit 0")
		early.Stdin = zeros{}
		if err := Run(t.Context(), early); err != nil {
			t.Errorf("a tool that does not read: %v", err)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestSpecIsChecked(t *testing.T) {
	for name, spec := range map[string]Spec{
		"no argv":        {},
		"path as argv":   {Argv: []string{"/bin/true"}},
		"relative path":  {Argv: []string{"true"}, ReadOnly: []string{"x"}},
		"root":           {Argv: []string{"true"}, ReadOnly: []string{"/"}},
		"unclean path":   {Argv: []string{"true"}, ReadWrite: []string{"/tmp/../etc"}},
		"dir elsewhere":  {Argv: []string{"true"}, Dir: "/tmp", ReadWrite: []string{"/tmp/x"}},
		"bad env":        {Argv: []string{"true"}, Env: []string{"=x"}},
		"NUL in argv":    {Argv: []string{"true", "a\x00b"}},
		"missing folder": {Argv: []string{"true"}, ReadWrite: []string{"/nonexistent/underwrite"}},
	} {
		if err := Run(t.Context(), spec); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, mode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

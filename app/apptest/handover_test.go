package apptest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"underwrite/runner/wire"
)

// Three users, none of whom needs an account: the kernel only knows numbers. The
// gateway is root here, as the sandbox demands.
const (
	consumerUID = 54301
	consumerGID = 54300 // the hand-over group
	strangerUID = 54302
	strangerGID = 54303
)

// as runs a shell command as another user, with no group but the one given.
func as(uid, gid uint32, script string, args ...string) (out string, err error) {
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "TMPDIR=/tmp"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// newHandOver is a site whose evidence is handed to consumerGID. Its
// directories can be traversed by everybody.
func newHandOver(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	config := s.path("gateway.yaml")
	text := string(readFile(t, config)) + fmt.Sprintf("consumerGid: %d\n", consumerGID)
	must(t, os.WriteFile(config, []byte(text), 0o600))
	s.command(t, "gateway", "init", "--config", config)
	for dir := s.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o711))
	}
	return s
}

// TestHandOver publishes evidence to a consumer that is another user and checks
// with the kernel what it can and what it cannot do, and a third user.
func TestHandOver(t *testing.T) {
	s := newHandOver(t)
	raw := s.request(t, "cat README.md", 0)
	o, _ := s.execute(t, raw, "evidence")
	if o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	outbox, state := s.path("outbox"), s.path("state")
	checkOwner(t, state, 0o700, 0, -1)
	checkOwner(t, outbox, 0o710, 0, consumerGID)
	checkOwner(t, o.EvidenceDir, 0o750, 0, consumerGID)
	for _, name := range wire.EvidenceFiles {
		checkOwner(t, filepath.Join(o.EvidenceDir, name), 0o640, 0, consumerGID)
	}
	for _, c := range []struct {
		name, script       string
		consumer, stranger bool // may do it
	}{
		{"read the six files", `cd "$1" && cat request.json capability.dsse.json receipt.dsse.json output.bundle stdout stderr`, true, false},
		{"list the evidence", `ls "$1"`, true, false},
		{"list the outbox", `ls "$2"`, false, false},
		{"write a file", `echo x >>"$1/stdout"`, false, false},
		{"add a file", `echo x >"$1/more"`, false, false},
		{"remove a file", `rm -f "$1/stdout"`, false, false},
		{"remove the evidence", `rm -rf "$1"`, false, false},
		{"rename the evidence", `mv "$1" "$1.gone"`, false, false},
		{"link a file", `ln "$1/stdout" "$2/link"`, false, false},
		{"make a name in the outbox", `mkdir "$2/other"`, false, false},
		{"change modes", `chmod 777 "$1"`, false, false},
		{"enter the state", `cd "$3"`, false, false},
		{"read the key", `cat "$4"`, false, false},
	} {
		for who, may := range map[string]bool{"consumer": c.consumer, "stranger": c.stranger} {
			uid, gid := uint32(consumerUID), uint32(consumerGID)
			if who == "stranger" {
				uid, gid = strangerUID, strangerGID
			}
			out, err := as(uid, gid, c.script, o.EvidenceDir, outbox, state, s.path("key.pem"))
			if (err == nil) != may {
				t.Errorf("the %s may %s: %v, want %v\n%s", who, c.name, err == nil, may, out)
			}
		}
	}
	if stdout, _ := s.verify(t, raw, o.EvidenceDir); stdout != "hello\n" {
		t.Errorf("afterwards stdout is %q", stdout)
	}
}

func checkOwner(t *testing.T, path string, mode os.FileMode, uid, gid int) {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm() != mode || int(st.Uid) != uid || gid >= 0 && int(st.Gid) != gid {
		t.Errorf("%s: mode %04o, owner %d:%d, want %04o, %d:%d", path, info.Mode().Perm(), st.Uid, st.Gid, mode, uid, gid)
	}
}

// TestHandOverVerifies: the consumer alone, with its own copies of key, source
// bundle and request, verifies what it was handed.
func TestHandOverVerifies(t *testing.T) {
	s := newHandOver(t)
	raw := s.request(t, "cat README.md", 0)
	o, _ := s.execute(t, raw, "evidence")
	if o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	own, err := os.MkdirTemp("/tmp", "consumer-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(own) })
	for name, content := range map[string][]byte{
		"key.pem": readFile(t, s.path("key.pub.pem")), "request.json": raw, "pr.bundle": readFile(t, s.frozen.BundlePath),
		"underwrite": readFile(t, s.binary),
	} {
		must(t, os.WriteFile(filepath.Join(own, name), content, 0o755))
	}
	must(t, os.Mkdir(filepath.Join(own, "tmp"), 0o700))
	must(t, os.Chown(filepath.Join(own, "tmp"), consumerUID, consumerGID))
	must(t, os.Chmod(own, 0o755))
	const verify = `cd "$2" && TMPDIR="$2/tmp" ./underwrite verify "$1" --key key.pem --source-bundle pr.bundle --expect request.json`
	out, err := as(consumerUID, consumerGID, verify, o.EvidenceDir, own)
	if err != nil || !strings.HasPrefix(out, "verified: ") {
		t.Errorf("verify as the consumer: %v\n%s", err, out)
	}
	must(t, os.Chown(filepath.Join(own, "tmp"), strangerUID, strangerGID))
	if out, err := as(strangerUID, strangerGID, verify, o.EvidenceDir, own); err == nil || strings.Contains(out, "verified") {
		t.Errorf("verify as a stranger: %v\n%s", err, out)
	}
}

// TestHandOverIsPromoted starts from what a crash between the rename and the
// hand-over leaves: the consumer gets in only after the gateway was asked again.
func TestHandOverIsPromoted(t *testing.T) {
	s := newHandOver(t)
	raw := s.request(t, "cat README.md", 0)
	o, _ := s.execute(t, raw, "evidence")
	if o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	before := readFile(t, filepath.Join(o.EvidenceDir, wire.ReceiptFile))
	must(t, os.Chmod(o.EvidenceDir, 0o700))
	must(t, os.Chown(o.EvidenceDir, 0, 0))
	const read = `cat "$1/receipt.dsse.json"`
	if out, err := as(consumerUID, consumerGID, read, o.EvidenceDir); err == nil {
		t.Errorf("the consumer reads what was not handed over: %s", out)
	}
	if again, _ := s.execute(t, raw, "evidence"); again != o {
		t.Errorf("again: %+v", again)
	}
	out, err := as(consumerUID, consumerGID, read, o.EvidenceDir)
	if err != nil || !bytes.Equal([]byte(out), before) {
		t.Errorf("after the promotion: %v, the same receipt: %v", err, out == string(before))
	}
}

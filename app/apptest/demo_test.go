package apptest_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/app/apptest"
	"underwrite/app/demo"
	"underwrite/attest"
	"underwrite/runner/wire"
)

func TestDemo(t *testing.T) {
	requireRoot(t)
	adoptOrphans(t)
	dir := filepath.Join(t.TempDir(), "demo")
	cmd := exec.Command(apptest.Binary(t), "demo", "--json", "--dir", dir)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("demo: %v\n%s%s", err, &stderr, logs(t, dir))
	}
	dec := json.NewDecoder(&stdout)
	dec.DisallowUnknownFields()
	var report demo.Report
	if err := dec.Decode(&report); err != nil {
		t.Fatalf("standard output is not one JSON object: %v", err)
	}
	if dec.More() {
		t.Error("standard output has more than one JSON object")
	}
	if err := report.Check(); err != nil {
		t.Error(err)
	}
	for i, code := range []int64{0, 1, 1} {
		verifyEvidence(t, dir, report.PullRequests[i], code)
	}
	for i, code := range []int{0, 1, 1} { // the second and third contradict their prediction
		runVerify(t, dir, report.PullRequests[i], code)
	}
	curious, err := os.ReadFile(filepath.Join(report.PullRequests[2].EvidenceDir, wire.StdoutFile))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(curious), ": denied ("); got != 8 || bytes.Contains(curious, []byte("REACHED")) {
		t.Errorf("%d of 8 ways out were denied:\n%s", got, curious)
	}
	if !strings.Contains(stderr.String(), "#4  timed_out") {
		t.Errorf("what happens is not printed live:\n%s", &stderr)
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// verifyEvidence checks with nothing but the public key and the exported files
// that the receipt is authentic and says the exit code.
func verifyEvidence(t *testing.T, dir string, r demo.Result, code int64) {
	t.Helper()
	read := func(path ...string) []byte {
		b, err := os.ReadFile(filepath.Join(path...))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	public, err := attest.ParsePublicKeyPEM(read(dir, "gateway", "key.pub.pem"))
	if err != nil {
		t.Fatal(err)
	}
	request, err := attest.ParseRequest(read(r.EvidenceDir, wire.RequestFile))
	if err != nil {
		t.Fatal(err)
	}
	if request.Target.Number != r.Number {
		t.Errorf("the request of #%d is for #%d", r.Number, request.Target.Number)
	}
	verify, err := attest.NewVerifier(attest.TrustedKey{Key: public, SignerID: request.Profile.SignerID})
	if err != nil {
		t.Fatal(err)
	}
	capability, receipt := read(r.EvidenceDir, wire.CapabilityFile), read(r.EvidenceDir, wire.ReceiptFile)
	expected, err := attest.ClaimedReceipt(capability, receipt)
	if err != nil {
		t.Fatal(err)
	}
	expected.Expected = request.Expected(expected.InputTree)
	expected.ExitCode = code
	for name, stream := range map[string]*attest.Stream{wire.StdoutFile: &expected.Stdout, wire.StderrFile: &expected.Stderr} {
		content := read(r.EvidenceDir, name)
		*stream = attest.Stream{SHA256: attest.SHA256Hex(content), Bytes: int64(len(content))}
	}
	output := read(r.EvidenceDir, wire.OutputFile)
	expected.OutputBundle.SHA256, expected.OutputBundle.Bytes = attest.SHA256Hex(output), int64(len(output))
	if _, err := attest.VerifyReceipt(capability, receipt, expected, verify, time.Now()); err != nil {
		t.Errorf("receipt of #%d: %v", r.Number, err)
	}
	if got := attest.SHA256Hex(receipt); got != r.ReceiptSHA256 {
		t.Errorf("receipt of #%d has digest %s, reported is %s", r.Number, got, r.ReceiptSHA256)
	}
}

// runVerify verifies a result with the command that the demo shows.
func runVerify(t *testing.T, dir string, r demo.Result, code int) {
	t.Helper()
	beside := filepath.Dir(r.EvidenceDir)
	cmd := exec.Command(apptest.Binary(t), "verify", r.EvidenceDir, "--key", filepath.Join(dir, "gateway", "key.pub.pem"),
		"--source-bundle", filepath.Join(beside, "source.bundle"), "--expect", filepath.Join(beside, "expectation.json"))
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("verify #%d: exit code %d (%v), want %d:\n%s", r.Number, got, err, code, out)
	}
}

// adoptOrphans makes this process the parent of what its children leave behind.
func adoptOrphans(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
}

// leftovers lists what the demo in dir left on the host: mounts below dir, and
// living processes that were orphaned or name dir. Other tests run beside.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	for line := range strings.Lines(string(readFile(t, "/proc/self/mountinfo"))) {
		if strings.Contains(line, dir) {
			list = append(list, "mount "+strings.TrimSpace(line))
		}
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		command, err2 := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || err2 != nil { // it ended meanwhile
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest) // state, parent, …
		orphan := fields[1] == strconv.Itoa(os.Getpid()) && bytes.HasPrefix(command, []byte("runsc"))
		if fields[0] != "Z" && (orphan || bytes.Contains(command, []byte(dir))) {
			list = append(list, "process "+string(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
		}
	}
	return list
}

// logs returns the logs of the demo's processes, for a failed test.
func logs(t *testing.T, dir string) string {
	var b strings.Builder
	for _, name := range []string{"gateway.log", "controller.log"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		t.Logf("%s: %v", name, err)
		b.WriteString(name + ":\n" + string(text))
	}
	return b.String()
}

// TestUnfitHost shows that a host on which sandboxes cannot be sealed gets one
// clear line for each reason, exit code 2 and nothing else.
func TestUnfitHost(t *testing.T) {
	requireRoot(t)
	binary := filepath.Join(t.TempDir(), "underwrite")
	copyFile(t, apptest.Binary(t), binary)
	if err := os.Chmod(filepath.Dir(binary), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(binary)), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		argv []string
		attr *syscall.SysProcAttr
		want string
	}{
		{
			name: "not root", argv: []string{binary, "demo"}, want: "sandboxes need root",
			attr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
		},
		{
			name: "no memory controller", want: "memory",
			argv: []string{"unshare", "-m", "sh", "-c", "umount -a -t cgroup,cgroup2; exec " + binary + " demo"},
		},
		{
			name: "no user namespaces", want: "user namespaces are off",
			argv: []string{"unshare", "-U", "-r", "sh", "-c", "echo 0 >/proc/sys/user/max_user_namespaces && exec " + binary + " demo"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command(test.argv[0], test.argv[1:]...)
			cmd.SysProcAttr = test.attr
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != 2 {
				t.Errorf("exit code %d (%v), want 2", code, err)
			}
			if !strings.Contains(stderr.String(), test.want) || strings.Contains(stderr.String(), "goroutine") || stdout.Len() > 0 {
				t.Errorf("want a line with %q and nothing on standard output:\n%s%s", test.want, &stderr, &stdout)
			}
			for line := range strings.Lines(stderr.String()) {
				if !strings.HasPrefix(line, "underwrite: ") {
					t.Errorf("line without the program's name: %q", line)
				}
			}
		})
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

package apptest_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"underwrite/app/apptest"
	"underwrite/attest"
)

// madeElsewhere are the README's commands that this test does not run, and who
// runs them.
var madeElsewhere = map[string]string{
	"make demo": "TestDemo runs what it builds",
	"make test": ".ci/run runs it",
}

// TestReadme runs the commands of the README in their order, with the paths of
// the system replaced by ones below a temporary directory, and the edits that
// it describes in words made to the copied configuration.
func TestReadme(t *testing.T) {
	requireRoot(t)
	root := t.TempDir()
	must(t, os.Chmod(root, 0o700))
	for _, dir := range []string{"etc", "var/lib", "run"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	var ran int
	for _, line := range readmeCommands(t) {
		if madeElsewhere[line] != "" {
			continue
		}
		if strings.HasPrefix(line, "underwrite init ") {
			editController(t, root)
		}
		runReadme(t, root, line)
		ran++
	}
	if ran < 9 {
		t.Errorf("only %d commands of the README were run", ran)
	}
}

// readmeCommands are the lines of the README's shell blocks.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	block := regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```")
	var lines []string
	for _, m := range block.FindAllStringSubmatch(string(readFile(t, "../../README.md")), -1) {
		for line := range strings.Lines(m[1]) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

var systemPath = regexp.MustCompile(`(^| )/(etc|var|run)/`)

// runReadme runs one line. A command that serves is stopped once it says that
// it listens.
func runReadme(t *testing.T, root, line string) {
	t.Helper()
	script := systemPath.ReplaceAllString(line, "${1}"+root+"/${2}/")
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = "../.."
	bin := filepath.Join(root, "bin")
	must(t, os.MkdirAll(bin, 0o755))
	if err := os.Symlink(apptest.Binary(t), filepath.Join(bin, "underwrite")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	var err error
	var said string
	if serves := strings.Contains(line, " run ") || strings.Contains(line, " serve "); serves {
		said, err = untilListening(cmd, "exec "+script)
	} else {
		var out []byte
		out, err = cmd.CombinedOutput()
		said = string(out)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, said)
	}
	if strings.HasPrefix(line, "cp deploy/") {
		adapt(t, root, systemPath.ReplaceAllString(line[strings.LastIndexByte(line, ' '):], root+"/${2}/"))
	}
}

func untilListening(cmd *exec.Cmd, script string) (said string, err error) {
	cmd.Args[2] = script
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if !strings.HasPrefix(line, "listening on ") {
		err = fmt.Errorf("it says %q", line)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if ended := cmd.Wait(); err == nil {
		err = ended
	}
	return stderr.String(), err
}

// adapt replaces the system's paths in a copied example.
func adapt(t *testing.T, root, path string) {
	t.Helper()
	text := regexp.MustCompile(`/(etc|var|run)/(lib/)?underwrite`).ReplaceAllString(string(readFile(t, path)), root+"$0")
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// editController makes the edits that the README describes in words.
func editController(t *testing.T, root string) {
	t.Helper()
	dir := filepath.Join(root, "etc/underwrite/controller")
	profile, err := attest.ParseProfile(readFile(t, filepath.Join(dir, "profiles/unit.json")))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "controller.yml")
	text := string(readFile(t, config))
	for old, now := range map[string]string{
		"signerID: urn:underwrite:signer:example": "signerID: " + profile.SignerID,
		"- urn:underwrite:executor:example":       "- " + profile.ExecutorID,
		"listen: 127.0.0.1:8080":                  "listen: 127.0.0.1:0",
	} {
		if !strings.Contains(text, old) {
			t.Fatalf("the example configuration lacks %q", old)
		}
		text = strings.Replace(text, old, now, 1)
	}
	must(t, os.WriteFile(config, []byte(text), 0o600))
	key, err := exec.Command("openssl", "genrsa", "-traditional", "2048").Output()
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "app.pem"), key, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "webhook-secret"), []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
}

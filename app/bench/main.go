// Command bench compares whole executions of the underwrite binary with bare
// gVisor, and tells where an execution's time goes and what memory the
// processes take. `make bench` runs it, with the Go benchmarks that lie beside
// the code; docs/performance.md keeps the results.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"underwrite/app/bench/ratio"
	"underwrite/runner/confine"
)

func main() {
	confine.MaybeExec()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	binary := flag.String("binary", "bin/underwrite", "the built `file` to measure")
	pairs := flag.Int("pairs", 20, "executions and bare starts, by turns")
	large := flag.Bool("large", true, "execute a repository of 10,000 files too")
	flag.Parse()
	if err := run(ctx, *binary, *pairs, *large); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, binary string, pairs int, large bool) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("sandboxes need root")
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "underwrite-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Bare gVisor's guest is another user of the host, who must be able to look in.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	anchor, err := buildBare(ctx, dir)
	if err != nil {
		return err
	}
	s, err := newSite(ctx, filepath.Join(dir, "site"), binary)
	if err != nil {
		return err
	}
	if err := s.freeze(ctx, "small", 3, 1<<10); err != nil {
		return err
	}
	if err := compare(ctx, s, anchor, pairs); err != nil {
		return err
	}
	if large {
		if err := s.freeze(ctx, "large", 10_000, 50_000_000); err != nil {
			return err
		}
		if err := phases(ctx, s, "large", max(pairs/4, 1)); err != nil {
			return err
		}
	}
	return memory(ctx, s, filepath.Join(dir, "stage"))
}

// compare runs executions of /usr/bin/true and bare starts by turns.
func compare(ctx context.Context, s *site, anchor *bareGVisor, pairs int) error {
	var p ratio.Pairing
	var all timings
	for range pairs {
		err := p.Run(func() error { return anchor.start(ctx) }, func() error {
			t, err := s.execute(ctx, "small", trueJob)
			all = append(all, t)
			return err
		})
		if err != nil {
			return err
		}
	}
	r := p.Result()
	fmt.Printf("execute of /usr/bin/true, %d pairs\n", r.Pairs)
	fmt.Printf("  bare gVisor start   %8.1f ms\n  execute             %8.1f ms\n  ratio               %8.2f\n", millis(r.Anchor), millis(r.Ours), r.Ratio)
	all.print(float64(r.Anchor))
	return nil
}

// phases runs executions alone and prints where their time goes.
func phases(ctx context.Context, s *site, source string, n int) error {
	var all timings
	for range n {
		t, err := s.execute(ctx, source, trueJob)
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	fmt.Printf("execute of /usr/bin/true on the %s repository, %d times\n", source, n)
	all.print(0)
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// bareGVisor is the anchor: a program that links gVisor and nothing around it.
type bareGVisor struct{ program, dir string }

// buildBare builds the tests of the package that links gVisor: they hold it.
func buildBare(ctx context.Context, dir string) (*bareGVisor, error) {
	b := &bareGVisor{program: filepath.Join(dir, "gvisor.test"), dir: filepath.Join(dir, "bare")}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags", "-s -w", "-o", b.program, "underwrite/runner/sandbox/gvisor")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the anchor: %w\n%s", err, out)
	}
	return b, nil
}

// start runs /usr/bin/true once. Making the empty directory counts; removing
// what is in it does not matter for the comparison and does too.
func (b *bareGVisor) start(ctx context.Context) error {
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, b.program, b.dir)
	cmd.Args[0] = "bare-gvisor"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("bare gVisor: %w\n%s", err, out)
	}
	return os.RemoveAll(b.dir)
}

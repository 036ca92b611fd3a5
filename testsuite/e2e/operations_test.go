package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"margay/internal/check"
)

// operationPrograms returns the ranks of the libraries' contract suite, in C and in Go.
func operationPrograms(t *testing.T) (inC, inGo string) {
	t.Helper()
	if err := compileOperations(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(scratch, "ranks-c"), filepath.Join(scratch, "ranks-go")
}

// compileOperations compiles these programs once.
var compileOperations = sync.OnceValue(func() error {
	const source = "../../lib/c/ctest/testdata/"
	build := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", filepath.Join(scratch, "ranks-go"), "margay/lib/margay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, c := range []*exec.Cmd{
		exec.Command("gcc", "-O2", "-static", "-I", "../../lib/c", source+"rank.c", source+"collect.c", source+"windows.c", source+"commit.c",
			filepath.Join(bin, "libmargay.a"), "-lm", "-o", filepath.Join(scratch, "ranks-c")),
		build,
	} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	return nil
})

// operations runs these programs on a machine: ranks 0 and 3 in C, ranks 1 and 2 in Go, or all in
// C without inGo.
type operations struct {
	*machine
	inC, inGo string
	seed      uint64
}

func (o operations) run(code int, mode string, n int, first string, more ...string) result {
	o.t.Helper()
	script := fmt.Sprintf("%s; case $MARGAY_RANK in 0|3) exec %s %s %d %d %s ;; *) exec %s rank %[3]s %d %[5]d ;; esac", first, o.inC, mode, o.seed, n,
		strings.Join(more, " "), o.inGo, o.seed)
	with := []string{"--with", o.inC, "--with", o.inGo}
	if o.inGo == "" {
		script, with = fmt.Sprintf("%s; exec %s %s %d %d %s", first, o.inC, mode, o.seed, n, strings.Join(more, " ")), with[:2]
	}
	return o.machine.run(code, slices.Concat([]string{"-n", "4"}, with, []string{"sh", "-c", script})...)
}

// check makes a number of collective calls and accesses to windows, and compares their results.
func (o operations) check(calls, accesses int) {
	o.t.Helper()
	r := o.run(0, "collect", calls, ":")
	if lines := strings.Fields(r.stdout); len(lines) != 4 || strings.Count(r.stdout, lines[0]) != 4 {
		o.t.Errorf("the results are not equal: %v", r)
	}
	if r = o.run(0, "windows", accesses, ":"); r.stdout != strings.Repeat("whole\n", 4) {
		o.t.Errorf("the windows are not whole: %v", r)
	}
}

// commits makes operations on the windows of all ranks. When a rank is killed in the middle of one,
// no other rank sees a part of a block, and the job ends and reports it.
func (o operations) commits(n int) {
	o.t.Helper()
	script := func(more string) string {
		return fmt.Sprintf("case $MARGAY_RANK in 0|3) exec %s commit %d %s ;; *) exec %s rank commit %[2]d ;; esac", o.inC, n, more, o.inGo)
	}
	args := []string{"-n", "4", "--with", o.inC, "--with", o.inGo, "sh", "-c"}
	if r := o.machine.run(0, append(args, script(""))...); r.stdout != strings.Repeat("whole\n", 4) {
		o.t.Errorf("the windows are not whole: %v", r)
	}
	if r := o.machine.run(128+9, append(args, script(strconv.Itoa(1+n/2)))...); !strings.Contains(r.stderr, "rank 3") || strings.Contains(r.stderr, "torn") {
		o.t.Errorf("the job does not say that rank 3 was killed: %v", r)
	}
}

// outlive checks that wherever a rank ends or is killed between collective calls, of all ranks or
// of groups, the others do not wait for it: the job ends and reports it.
func (o operations) outlive(times uint64) {
	o.t.Helper()
	for i := range times {
		dies := 1 + int(scatter(o.seed, i)%40)
		if r := o.run(125, "collect", 400, ":", strconv.Itoa(dies)); !strings.Contains(r.stderr, "rank 3") {
			o.t.Errorf("the job does not say that rank 3 has ended before call %d: %v", dies, r)
		}
		if r := o.run(128+9, "collect", 400, ":", strconv.Itoa(-dies)); !strings.Contains(r.stderr, "rank 3") {
			o.t.Errorf("the job does not say that rank 3 was killed before call %d: %v", dies, r)
		}
		o.seed++
	}
}

// scatter returns a number that depends on a seed.
func scatter(seed, n uint64) uint64 { return rand.New(rand.NewPCG(seed, n)).Uint64() }

// Ranks in C and in Go make random collective calls together, and use each other's windows, on
// their own node and on others. All get the same results. If one ends instead, the job ends and
// reports it. On emulated nodes all ranks are in C, because an emulated processor is slow to start
// a program in Go.
func TestOperations(t *testing.T) {
	seed := check.Seed(t)
	onBoth(t, func(t *testing.T, m *machine) {
		inC, inGo := operationPrograms(t)
		calls, accesses := 60, 300
		if !m.hosted() {
			calls, accesses, inGo = 8, 15, ""
		}
		o := operations{m, inC, inGo, seed}
		o.check(calls, accesses)
		if !m.hosted() {
			return
		}
		r := o.run(125, "collect", calls, "if [ $MARGAY_RANK = 3 ]; then exit 0; fi")
		if !strings.Contains(r.stderr, "to rank 3") || !strings.Contains(r.stderr, "which has ended") {
			t.Errorf("the job does not say that rank 3 has ended: %v", r)
		}
		o.commits(6)
		o.outlive(6)
	})
}

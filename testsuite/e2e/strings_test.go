package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Arguments and variables reach ranks byte for byte as they would reach a process here: up to 128
// KiB each and 2 MiB in all.
func TestLongStrings(t *testing.T) {
	m := use(t, "hosted")
	t.Run("long", func(t *testing.T) {
		long := strings.Repeat("x", 130_000)
		r := start(t, func(cmd *exec.Cmd) { cmd.Env = append(os.Environ(), "LONG="+long) },
			"-m", m.name, "run", "-n", "1", "sh", "-c", "echo ${#LONG} ${#1}", "sh", long).wait()
		if r.code != 0 || r.stdout != "130000 130000\n" {
			t.Errorf("a variable and an argument of 130,000 bytes: %v", r)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		dir := filepath.Join(scratch, "fol\xffder")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		r := start(t, func(cmd *exec.Cmd) { cmd.Env, cmd.Dir = append(os.Environ(), "PROBE_ENV=\xfe", "PWD="+dir), dir },
			"-m", m.name, "run", "-n", "2", probe(), "hello", "a\xffb", "\xc3(").wait()
		for _, line := range strings.Split(strings.TrimSpace(r.stdout), "\n") {
			if !strings.Contains(line, " dir "+dir+" ") || !strings.HasSuffix(line, " env \xfe args [\"a\\xffb\" \"\\xc3(\"]") {
				t.Errorf("a rank says %q", line)
			}
		}
		if r.code != 0 {
			t.Error(r)
		}
	})
	t.Run("many", func(t *testing.T) {
		var env, names []string
		for i := range 14 {
			names = append(names, fmt.Sprintf("$MANY%d", i))
			env = append(env, fmt.Sprintf("MANY%d=%s", i, strings.Repeat(fmt.Sprintf("%x", i), 130_000)))
		}
		script := fmt.Sprintf(`all="%s"; echo ${#all}`, strings.Join(names, ""))
		r := start(t, func(cmd *exec.Cmd) { cmd.Env = append(os.Environ(), env...) }, "-m", m.name, "run", "-n", "3", "sh", "-c", script,
			"sh", strings.Repeat("y", 80_000)).wait()
		if r.code != 0 || r.stdout != strings.Repeat("1820000\n", 3) {
			t.Errorf("1.9 MB: %v", r)
		}
	})
	// A shell with a larger stack limit can start margay run with more strings than a node, with
	// its usual stack limit, can give to ranks.
	t.Run("too many", func(t *testing.T) {
		script := `ulimit -s 65536; x=$(head -c 130000 /dev/zero | tr '\0' x); for i in $(seq 20); do export "MANY$i=$x"; done; exec "$@"`
		cmd := exec.Command("bash", "-c", script, "bash", filepath.Join(bin, "margay"), "-m", m.name, "run", "-n", "1", "true")
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 126 || !strings.Contains(string(out), "run true: argument list too long: arguments and environment are ") {
			t.Errorf("2.6 MB: %v, %q", err, out)
		}
	})
}

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pingPong is a shell program whose ranks 0 and 1 are the server and the client of fi_pingpong. The
// client does not wait for its server.
const pingPong = `test $MARGAY_RANK = 0 && exec fi_pingpong -p margay -e rdm -c -I 20 -S "$2"
for try in $(seq 600); do
	fi_pingpong -p margay -e rdm -c -I 20 -S "$2" "$1" 2>err && exit
	grep -q 'failed to connect' err || break
	sleep 0.1
done
cat err >&2
exit 1`

// Programs of libfabric send messages over the fabric, within a node and between nodes: one that
// uses tags as a library of MPI does, and libfabric's own ping-pong. A process that is not a rank
// finds no endpoint of the provider, which prints nothing.
func TestLibfabric(t *testing.T) {
	m := use(t, "hosted")
	provider := []string{"--with", filepath.Join(bin, "margay-fi.so"), "--env", "FI_PROVIDER_PATH=" + bin}
	program := filepath.Join(t.TempDir(), "tagged")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "../../lib/ofi/ofitest/testdata/tagged.c", "-lfabric", "-o", program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, job := range [][]string{{"-n", "2", "--ppn", "2"}, {"-n", "2", "--ppn", "1"}, {"-n", "4", "--ppn", "2"}} {
		args := append(append(append([]string{}, job...), provider...), program, job[1])
		if r := m.run(0, args...); r.stdout != "tagged: ok\n" || r.stderr != "" {
			t.Errorf("%v: %v", job, r)
		}
	}
	for _, size := range []string{"64", "100000"} {
		args := append([]string{"-n", "2", "--ppn", "1", "--network", "--root", "host"}, provider...)
		r := m.run(0, append(args, "bash", "-c", "cd /tmp; "+pingPong, "bash", "node0", size)...)
		if strings.Count(r.stdout, "MB/sec") != 2 {
			t.Errorf("messages of %s bytes: %v", size, r)
		}
	}
	cmd := exec.Command("fi_info", "-p", "margay")
	cmd.Env = append(os.Environ(), "FI_PROVIDER_PATH="+bin)
	if out, err := cmd.CombinedOutput(); err == nil || string(out) != "fi_getinfo: -61\n" {
		t.Errorf("fi_info: %v: %s", err, out)
	}
}

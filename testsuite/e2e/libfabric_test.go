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

// withProvider are the arguments that bring the provider along.
func withProvider() []string {
	return []string{"--with", filepath.Join(bin, "margay-fi.so"), "--env", "FI_PROVIDER_PATH=" + bin}
}

// fabricProgram compiles a program that uses libfabric.
func fabricProgram(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "../../lib/ofi/ofitest/testdata/"+name+".c", "-lfabric", "-o", program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// Programs of libfabric send messages over the fabric, within a node and between nodes: one that
// uses tags as a library of MPI does, and libfabric's own ping-pong. A process that is not a rank
// finds no endpoint of the provider, which prints nothing.
func TestLibfabric(t *testing.T) {
	m := use(t, "hosted")
	provider := withProvider()
	program := fabricProgram(t, "tagged")
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

// A program of libfabric reads and writes the memory of other ranks, over the fabric as by
// libfabric's own providers, also where ranks of a node cannot read the memory of each other. An
// operation on a rank that has ended ends the job.
func TestLibfabricRMA(t *testing.T) {
	m := use(t, "hosted")
	program := fabricProgram(t, "rma")
	run := func(want int, n, each string, more ...string) result {
		args := append([]string{"-t", "1m", "-n", n, "--ppn", each}, withProvider()...)
		return m.run(want, append(append(args, program, "margay", n), more...)...)
	}
	for _, job := range [][]string{{"2", "2"}, {"4", "2"}, {"2", "2", "apart"}} {
		if r := run(0, job[0], job[1], job[2:]...); r.stdout != "rma: ok\n" || r.stderr != "" {
			t.Errorf("ranks, on a node: %v: %v", job, r)
		}
	}
	for _, provider := range []string{"shm", "tcp;ofi_rxm"} {
		if out, err := exec.Command("timeout", "60", program, provider, "3").CombinedOutput(); err != nil || string(out) != "rma: ok\n" {
			t.Errorf("%s: %v: %s", provider, err, out)
		}
	}
	for _, each := range []string{"2", "1"} {
		r := run(125, "2", each, "leave")
		if !strings.Contains(r.stderr, "rank 0 has sent a message to rank 1 on node") || !strings.Contains(r.stderr, ", which has ended") {
			t.Errorf("a rank has ended, %s on a node: %v", each, r)
		}
	}
}

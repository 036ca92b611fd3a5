package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// daemon plays the daemon of Open MPI: it says to mpirun, at the address in its words, where it is
// and how many nodes its network has, and ends after the answer.
const daemon = `address=${1##*//}
exec 3<>/dev/tcp/${address%:*}/${address##*:}
echo $(hostname) $(grep -c ' node' /etc/hosts) >&3
read line <&3
echo "$line"
`

// A command has its cores for itself: jobs that it starts are steps with these cores, on the nodes
// that it knows. A daemon that it starts as mpirun does reaches it. When it is killed, its steps
// end, and the cores are free.
func TestAllocation(t *testing.T) {
	m := use(t, "hosted")
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "daemon"), []byte(daemon), 0o644); err != nil {
		t.Fatal(err)
	}
	mpirun, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mpirun.Close()
	script := fmt.Sprintf(`for t in /proc/$PPID/task/*; do cat /proc/${t##*/}/timerslack_ns; done | sort -n | tail -n 1
cat /proc/self/timerslack_ns
margay exec --label=host hostname | sort
margay run -n 5 hostname
echo "status $?"
margay mpi-agent node1 bash daemon '"1.0;tcp://%s;tcp6://[::1]:1"'
margay run -n 4 /bin/sh -c 'echo runs; kill -STOP $$'
`, mpirun.Addr())
	change := func(c *exec.Cmd) {
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	}
	c := start(t, change, "-m", m.name, "alloc", "-q", "-w", "0,1", "-n", "4", "sh", "-c", script)
	go func() { // a daemon that does not come must not hold up the test
		<-c.done
		mpirun.Close()
	}()
	conn, err := mpirun.Accept()
	if err != nil {
		t.Fatalf("%v: %s%s", err, c.stdout.String(), c.stderr.String())
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(commandTimeout)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "node1 2\n" {
		t.Errorf("mpirun hears %q, %v", line, err)
	}
	fmt.Fprintln(conn, "end")
	eventually(t, "start of the last step", func() bool { return strings.Count(c.stdout.String(), "runs\n") == 4 }, func() string {
		return c.stdout.String() + c.stderr.String()
	})
	if out := c.stdout.String(); !strings.HasPrefix(out, "1000000\n50000\n[node0] node0\n[node1] node1\nstatus 125\n") || !strings.Contains(c.stderr.String(), "5 ranks need 5 application cores, but 4 of 4 are free") {
		t.Errorf("%s%s", out, c.stderr.String())
	}
	if r := m.margay("ps"); !strings.Contains(r.stdout, "allocated") || !strings.Contains(r.stdout, " (in ") {
		t.Errorf("while it lasts: %v", r)
	}
	c.signal(syscall.SIGKILL)
	c.wait()
	eventually(t, "end of the steps", func() bool { return len(m.jobs()) == 0 }, func() string { return m.margay("ps").String() })
	m.run(0, "-n", "8", "--wait=1m", "true")
}

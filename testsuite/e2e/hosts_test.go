package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// launcher is a remote shell that finds all hosts on this one: they are down when a file is there,
// and so is the host of that name.
const launcher = `host=$1; shift
if [ "$host" = down ] || [ -e "${0%/*}/over" ]; then
	echo "$host does not answer" >&2
	exit 255
fi
exec sh -c "$*"
`

// A machine of hosts comes up without one that is down. Its jobs exchange messages, and survive a
// restart of serve. When the hosts are gone, the machine is, and has left nothing.
func TestHosts(t *testing.T) {
	ownMachine(t, "own")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "launcher"), []byte(launcher), 0o600); err != nil {
		t.Fatal(err)
	}
	temporary := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: "hosts", nodes: 3, cores: 1}
	r := start(t, func(cmd *exec.Cmd) { cmd.Env = append(os.Environ(), "TMPDIR="+temporary) },
		"-m", m.name, "machine", "up", "-q", "--boot-timeout", "3m", "--substrate", "hosts", "--hosts", "a,down,b", "--cores", "1",
		"--launcher", "sh "+filepath.Join(dir, "launcher"), "--address", "127.0.0.1").wait()
	t.Cleanup(func() {
		m.logs()
		m.margay("machine", "down") // it is down already, unless the test has failed
	})
	if os.Getuid() != 0 && strings.Contains(r.stderr, "let an ordinary user make namespaces") {
		t.Skip(r.stderr)
	}
	if r.code != 0 || !strings.Contains(r.stderr, "node1 did not come up: host down: its launcher ended before it had started the node: exit status 255") ||
		!strings.Contains(r.stderr, "down does not answer") {
		t.Fatal(r)
	}
	if r := m.run(0, "-n", "2", filepath.Join(bin, "stencil"), "20"); !strings.Contains(r.stdout, "2 ranks: after 20 steps") {
		t.Error(r)
	}
	if r := m.margay("run", "--network", "-n", "2", "hostname"); r.code != 125 || !strings.Contains(r.stderr, "its devices need rights over the network of ") {
		t.Error(r)
	}
	_, serve := m.status()
	kill(t, serve)
	if r := m.run(0, "-n", "2", "hostname"); strings.Count(r.stdout, "node") != 2 {
		t.Error(r)
	}

	if err := os.WriteFile(filepath.Join(dir, "over"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(m.file("log", "holder.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`node[02] started, pid (\d+)`).FindAllStringSubmatch(string(log), -1) {
		pid, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		kill(t, pid)
	}
	eventually(t, "end of the machine", func() bool {
		_, err := os.Lstat(m.file())
		return errors.Is(err, fs.ErrNotExist)
	}, func() string { return m.margay("nodes").String() })
	if left, err := os.ReadDir(temporary); err != nil || len(left) != 0 {
		t.Errorf("the nodes have left %v, %v", left, err)
	}
}

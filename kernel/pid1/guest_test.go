//go:build guest

package pid1_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/kernel/abi/node"
	"margay/kernel/pid1"
)

func TestMachine(t *testing.T) {
	if err := os.MkdirAll(filepath.Dir(node.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(node.Path, encoded(t), 0o600); err != nil {
		t.Fatal(err)
	}
	p := play(t, namespaces(), "machine", "-")
	p.await("ready\n")
	said := p.out.String()
	for _, want := range []string{
		"host node3 node 3 token token\n", "interface lo true 65536\n", "interface card true 1234\n", "address card 10.66.1.3/16\n",
		"/proc/[0-9]* [/proc/1] <nil>\n",
		"\nproc /proc proc rw,nosuid,nodev,noexec", "\nsysfs /sys sysfs rw,nosuid,nodev,noexec", "\ndev /dev devtmpfs rw,nosuid",
		"\nrun /run tmpfs rw,nosuid,nodev", "\ntmp /tmp tmpfs rw,nosuid,nodev", "\ncgroup /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec",
		" /sys/fs/pstore pstore rw,nosuid,nodev,noexec",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in:\n%s", want, said)
		}
	}
	// kernel/pid_max is of the PID namespace of the played machine.
	for name, want := range map[string]string{"user/max_user_namespaces": "0\n", "kernel/keys/maxbytes": "1\n", "kernel/threads-max": "4194304\n"} {
		if value, err := os.ReadFile("/proc/sys/" + name); string(value) != want {
			t.Errorf("%s is %q, want %q: %v", name, value, want, err)
		}
	}
}

// The guest was booted from a node image, so its modules are loaded. Loading them again is not an
// error.
func TestModules(t *testing.T) {
	order, err := os.ReadFile(node.LoadOrder)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/modules")
	if err != nil {
		t.Fatal(err)
	}
	var loaded []string
	for line := range strings.Lines(string(text)) {
		loaded = append(loaded, strings.Fields(line)[0])
	}
	want := strings.Fields(string(order))
	for _, path := range want {
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
		if !slices.Contains(loaded, name) {
			t.Errorf("module %s is not loaded: %v", name, loaded)
		}
	}
	if err := (pid1.Machine{}).LoadModules(); err != nil || len(want) == 0 {
		t.Errorf("%d modules, %v", len(want), err)
	}
}

package machine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/kernel/abi/node"
	"margay/tools/margay/margaytest"
)

// On a terminal, the console of a node is its serial port if the machine file names a command for
// it, which gets the terminal. In a pipe, and of other nodes, it is the text that is kept.
func TestSerialConsole(t *testing.T) {
	m := margaytest.Play(t, "m", func(*control.Conn, *control.Frame) {})
	dir := filepath.Join(m.Base, m.Name)
	rack := filepath.Join(t.TempDir(), "machine.yaml")
	spec, err := json.Marshal(machine.Spec{Name: "m", Substrate: node.Metal, Metal: machine.MetalSpec{File: rack}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	const script = `#!/bin/sh
test -t 0 -a -t 1 || exit 3
echo "the serial port of $1 $2"
read key
echo "it gets <$key>"
exit 7
`
	for path, text := range map[string]string{
		filepath.Join(dir, "machine.json"):         string(spec),
		filepath.Join(dir, "log", "node2.console"): "kept of 2\n",
		filepath.Join(dir, "log", "node3.console"): "kept of 3\n",
		filepath.Join(dir, "log", "node4.console"): "kept of 4\n",
		rack: "console: [{nodes: 2..3, command: [./serial, 'bmc {number}', x]}, {nodes: 5, command: [/absent/serial]}]\n",
		filepath.Join(filepath.Dir(rack), "serial"): script,
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	x := margaytest.OnTerminal(t)
	x.Press("$margay machine console 3\n")
	x.Await("the serial port of bmc 3 x")
	x.Press("hello\n")
	x.Await("it gets <hello>")
	x.Press("echo status $?\n")
	x.Await("\nstatus 7")
	x.Press("$margay machine console 3 | cat\n")
	x.Await("kept of 3")
	x.Press("$margay machine console 4\n")
	x.Await("kept of 4")
	x.Press("$margay machine console 5\n")
	x.Await("machine console: /absent/serial: ")
	if err := os.Chmod(rack, 0o722); err != nil {
		t.Fatal(err)
	}
	x.Press("$margay machine console 2\n")
	x.Await("others can write to it, and it names programs that are executed")
	status, stdout, stderr := margaytest.Margay("", "machine", "console", "2")
	if status != 0 || stdout != "kept of 2\n" || stderr != "" {
		t.Errorf("without a terminal: status %d, %q, %q", status, stdout, stderr)
	}
	if strings.Contains(x.Text(), "kept of 2") {
		t.Errorf("the terminal has shown %q", x.Text())
	}
}

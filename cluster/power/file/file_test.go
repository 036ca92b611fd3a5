package file

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/cluster/power/command"
	"margay/cluster/power/ipmi"
	"margay/cluster/power/wake"
)

const whole = `# a rack
power:
  - nodes: 0..15
    driver: redfish
    address: https://bmc{number}.example
    user: operator
    password-file: bmc.password
    fingerprint: "00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff"
  - nodes: node[16-17]
    driver: ipmi
    address: 10.0.0.{number}
    user: operator
    password-env: MARGAY_TEST_PASSWORD
    timeout: 2m
  - {nodes: 18, driver: wake-on-lan, mac: "52:54:00:12:34:56"}
  - {nodes: "19,20", driver: command, command: [./power, "rack-{number}"]}
`

// write writes a machine file and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "machine.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each node gets the driver of its entry, with its number and with the password.
func TestFile(t *testing.T) {
	path := write(t, whole)
	folder := filepath.Dir(path)
	t.Setenv("MARGAY_TEST_PASSWORD", "secret")
	m, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if nodes := m.Nodes(); len(nodes) != 21 || nodes[20] != 20 {
		t.Errorf("its nodes are %v", nodes)
	}
	d, timeout, err := m.Driver(17)
	if want := (ipmi.Controller{Address: "10.0.0.17:623", User: "operator", Password: "secret"}); err != nil || d != want || timeout != 2*time.Minute {
		t.Errorf("node17: %v, %v, %v", d, timeout, err)
	}
	d, timeout, err = m.Driver(18)
	if card, ok := d.(wake.Card); err != nil || !ok || card.Address.String() != "52:54:00:12:34:56" || card.Broadcast.String() != "255.255.255.255:9" || timeout != DefaultTimeout {
		t.Errorf("node18: %v, %v, %v", d, timeout, err)
	}
	d, _, err = m.Driver(20)
	if p, ok := d.(command.Program); err != nil || !ok || !slices.Equal(p.Args, []string{filepath.Join(folder, "power"), "rack-20"}) || p.Node != "node20" {
		t.Errorf("node20: %v, %v", d, err)
	}
	if _, _, err := m.Driver(21); err == nil || !strings.Contains(err.Error(), "the file has no node21: its nodes are node0-20") {
		t.Errorf("node21: %v", err)
	}
	password := filepath.Join(folder, "bmc.password")
	for _, step := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{"", 0o600, "no such file"},
		{"secret\n", 0o640, "others can read it, and it has a password: chmod 600 " + password},
		{"\n", 0o600, "it must have one line, the password"},
		{"one\ntwo\n", 0o600, "it must have one line, the password"},
		{strings.Repeat("x", mostPassword+1), 0o600, "has more than 4096 bytes"},
		{"secret\n", 0o600, ""},
	} {
		if step.text != "" {
			if err := os.WriteFile(password, []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(password, step.mode); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := m.Driver(3); step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)) {
			t.Errorf("password %.10q, mode %v: %v", step.text, step.mode, err)
		}
	}
	for _, c := range []struct{ secret, want string }{
		{"", "the environment has no variable MARGAY_TEST_PASSWORD"}, {strings.Repeat("x", 21), "a password of IPMI has at most 20 bytes"},
	} {
		t.Setenv("MARGAY_TEST_PASSWORD", c.secret)
		if _, _, err := m.Driver(16); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("password %q in the environment: %v", c.secret, err)
		}
	}
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "others can write to it, and it names programs that are executed: chmod go-w "+path) {
		t.Errorf("a file that others can write: %v", err)
	}
	if _, err := Read("/dev/null"); err == nil || !strings.Contains(err.Error(), "/dev/null is not a regular file") {
		t.Errorf("a device: %v", err)
	}
}

// The machine files in the documents are literal.
func TestDocumented(t *testing.T) {
	for page, files := range map[string]int{"power.md": 1, "netboot.md": 2} {
		text, err := os.ReadFile(filepath.Join("../../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(string(text), "```yaml\n")[1:]
		if len(parts) != files {
			t.Errorf("%s has %d machine files, not %d", page, len(parts), files)
		}
		for _, part := range parts {
			block, _, _ := strings.Cut(part, "```")
			if _, err := Parse([]byte(block)); err != nil {
				t.Errorf("%s: %v in\n%s", page, err, block)
			}
		}
	}
}

// Check names all that drivers lack, once for all nodes that lack it.
func TestCheck(t *testing.T) {
	path := write(t, `
nodes: [{number: 1, mac: "52:54:00:00:00:01"}]
power:
  - {nodes: 0..2, driver: ipmi, address: "10.0.0.{number}", user: u, password-file: secret}
  - {nodes: 3, driver: ipmi, address: 10.0.0.3, user: u, password-env: MARGAY_TEST_ABSENT}
  - {nodes: 4..5, driver: command, command: [./absent]}
  - {nodes: 6, driver: command, command: [./text]}
  - {nodes: 7, driver: command, command: [margay-no-such-program]}
  - {nodes: 8, driver: wake-on-lan, mac: "52:54:00:12:34:56"}
  - {nodes: 9, driver: command, command: [sh]}
`)
	folder := filepath.Dir(path)
	if err := os.WriteFile(filepath.Join(folder, "text"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"node0-2: open " + folder + "/secret: no such file or directory",
		"node3: the environment has no variable MARGAY_TEST_ABSENT, which has the password",
		"node4-5: exec: \"" + folder + "/absent\": stat " + folder + "/absent: no such file or directory",
		"node6: exec: \"" + folder + "/text\": permission denied",
		"node7: exec: \"margay-no-such-program\": executable file not found in $PATH",
	}
	if err := m.Check(); err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("%v", err)
	}
	if got := m.Unnamed(); !slices.Equal(got, []uint32{0, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("unnamed are %v", got)
	}
	whole, err := Parse([]byte("power: [{nodes: 9, driver: command, command: [sh]}]"))
	if err != nil || whole.Check() != nil || whole.Unnamed() != nil {
		t.Errorf("one that lacks nothing: %v, %v, %v", err, whole.Check(), whole.Unnamed())
	}
}

const machine = "4c4c4544-0042-3510-8051-b4c04f4a4e32"

// A node is known by its card, by its machine, or by both.
func TestCards(t *testing.T) {
	m, err := Parse([]byte(`nodes: [{number: 3, mac: "52:54:00:00:00:01"}, {number: 1, uuid: ` + machine + `}, {number: 2, mac: "52:54:00:00:00:02", uuid: 4c4c4544-0042-3510-8051-b4c04f4a4e33}]`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(m.Cards()), "[52:54:00:00:00:01 "+machine+" 52:54:00:00:00:02 and 4c4c4544-0042-3510-8051-b4c04f4a4e33]"; got != want || m.Cards()[1].Node != 1 {
		t.Errorf("%s, want %s", got, want)
	}
}

// Errors name the entry and its defect, and no types of Go.
func TestBadFiles(t *testing.T) {
	bmc := "power: [{nodes: 1, driver: %s, address: %s, user: u, password-env: P%s}]"
	entry := func(driver, address, more string) string {
		return strings.NewReplacer("driver: %s", "driver: "+driver, "address: %s", "address: "+address, "P%s", "P"+more).Replace(bmc)
	}
	for text, want := range map[string]string{
		"":                                      "it is empty",
		"power: []":                             "it has no entry below nodes, power or console",
		"nodes: [{mac: \"52:54:00:00:00:01\"}]": "entry 1 of nodes: it has no number",
		"nodes: [{number: 1, mac: \"ff:ff:ff:ff:ff:ff\"}]":                                          "entry 1 of nodes: mac is",
		"nodes: [{number: 1, mac: \"52:54:00:00:00:01\"}, {number: 1, mac: \"52:54:00:00:00:02\"}]": "entry 2 of nodes: node1 with 52:54:00:00:00:02: an earlier entry is node1",
		"nodes: [{number: 1, mac: \"52:54:00:00:00:01\"}, {number: 2, mac: \"52:54:00:00:00:01\"}]": "entry 2 of nodes: node2 with 52:54:00:00:00:01: an earlier entry is node1",
		"power: 7":                             "line 1: the value is of the wrong kind",
		"power: [7]":                           "line 1: the value is of the wrong kind",
		"power: [":                             "line 1: ",
		"hosts: 1":                             "line 1: there is no field hosts",
		"power: [{node: 1}]":                   "line 1: there is no field node",
		"power: [7]\n---\na: 1":                "the value is of the wrong kind",
		whole + "---\na: 1\n":                  "it has more than one document",
		"nodes: [{number: 1, uuid: 4c4c4544}]": `entry 1 of nodes: "4c4c4544" is not the UUID of a machine`,
		"nodes: [{number: 1, mac: x, uuid: " + machine + "}]":                                              "entry 1 of nodes: mac is",
		"nodes: [{number: 1, uuid: " + machine + "}, {number: 2, uuid: " + strings.ToUpper(machine) + "}]": "entry 2 of nodes: node2 with " + machine + ": an earlier entry is node1 with " + machine,
		"power: [{driver: ipmi}]":                                                                         "entry 1 of power: nodes: it names no node",
		"power: [{nodes: 1, driver: telnet}]":                                                             `driver is "telnet", not redfish, ipmi, wake-on-lan or command`,
		"power: [{nodes: 1, driver: ipmi}]":                                                               "driver ipmi needs address",
		"power: [{nodes: 1, driver: ipmi, address: x, user: u}]":                                          "driver ipmi needs password-file or password-env",
		entry("ipmi", "x", ", password-file: f"):                                                          "it has password-file and password-env",
		entry("ipmi", "x", ", fingerprint: f"):                                                            "driver ipmi has no fingerprint",
		entry("ipmi", "x", ", timeout: soon"):                                                             `timeout is "soon", not a time such as 30s, at most 10m0s`,
		entry("ipmi", "x", ", timeout: 1h"):                                                               `timeout is "1h"`,
		entry("redfish", "http://x", ""):                                                                  `address is "http://x", not https://HOST or https://HOST:PORT`,
		entry("redfish", "https://u:p@x", ""):                                                             "not https://HOST",
		entry("redfish", "https://x/y", ""):                                                               "not https://HOST",
		entry("redfish", "https://x", ", fingerprint: abc"):                                               "fingerprint is not the SHA-256 of a certificate",
		"power: [{nodes: 1..2, driver: ipmi, address: x, user: u, password-env: P}]":                      "1..2 would be one and the same: each needs an entry, or {number} in its address",
		"power: [{nodes: 1..2, driver: wake-on-lan, mac: '52:54:00:12:34:56'}]":                           "would be one and the same",
		"power: [{nodes: 1, driver: wake-on-lan, mac: x}]":                                                `mac is "x", not the address of a network card`,
		"power: [{nodes: 1, driver: command}]":                                                            "driver command needs command",
		"power: [{nodes: 1, driver: command, command: ['']}]":                                             "command has no program",
		"power: [{nodes: 1, driver: command, command: [x]}, {nodes: 0-3, driver: command, command: [y]}]": "entry 2 of power: an earlier entry has node1 already",
		"power: [{nodes: 1, nodes: 2}]":                                                                   "nodes",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "file.") || strings.Contains(err.Error(), "yaml") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// No text makes the parser fail, and what it accepts has drivers.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("power: [{nodes: 1, driver: wake-on-lan, mac: '52:54:00:12:34:56', address: '1.2.3.4:{number}'}]"))
	f.Add([]byte("a: &a [*a, *a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x1b\x00") {
				t.Errorf("the error is %q", err)
			}
			return
		}
		for i, node := range m.Nodes() {
			if d, err := m.nodes[node].driver(node, func() (string, error) { return "x", nil }); i < 8 && err == nil && d == nil {
				t.Errorf("node%d has neither a driver nor an error", node)
			}
		}
	})
}

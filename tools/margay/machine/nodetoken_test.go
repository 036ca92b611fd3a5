package machine_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/cluster/metal"
	"margay/kernel/abi/node"
	"margay/tools/margay/margaytest"
)

// margay node token prints the token of one node, and nothing in the machine's folder has it.
// --revoke removes it.
func TestNodeToken(t *testing.T) {
	m := margaytest.Play(t, "rack", func(*control.Conn, *control.Frame) {})
	spec, err := json.Marshal(machine.Spec{Name: "rack", Substrate: node.Metal, Nodes: 2, Metal: machine.MetalSpec{
		Plan: metal.Plan{Server: netip.MustParsePrefix("10.8.0.1/24"), Range: netip.MustParsePrefix("10.8.0.0/24")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(m.Base, "rack")
	if err := os.WriteFile(filepath.Join(folder, "machine.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := margaytest.Margay("", "node", "token", "node3", "--expires", "8h")
	margaytest.Wants(t, status, 0, stderr, "the token of node3 is valid once, until ", "image build --format disk --token")
	token, err := machine.ParseNodeToken(strings.TrimSuffix(stdout, "\n"))
	if err != nil || token.Node != 3 {
		t.Errorf("%q: %v", stdout, err)
	}
	stored, err := os.ReadFile(filepath.Join(folder, "tokens", "3"))
	if _, secret, _ := strings.Cut(stdout, "-"); err != nil || strings.Contains(string(stored), strings.TrimSpace(secret)) {
		t.Errorf("%s, %v", stored, err)
	}
	status, stdout, stderr = margaytest.Margay("", "node", "token", "--list")
	if lines := strings.Split(stdout, "\n"); status != 0 || len(lines) != 3 || !strings.HasPrefix(lines[0], "NODE   TERM  CREATED") || !strings.HasPrefix(lines[1], "node3  1     20") {
		t.Errorf("listed: %d, %q, %s", status, stdout, stderr)
	}
	status, stdout, stderr = margaytest.Margay("", "node", "token", "--list", "--json")
	margaytest.Wants(t, status, 0, stdout+stderr, `"node": 3`, `"term": 1`, `"created": "`, `"expires": "`)
	if strings.Contains(stdout, "hash") || strings.Contains(stdout, `"used"`) {
		t.Errorf("listed: %s", stdout)
	}
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"node token 3 --revoke", 0, ""},
		{"node token 3 --revoke", 125, "machine rack has no token of node3"},
		{"node token", 125, "NODE is missing"},
		{"node token 3 --list", 125, "node token takes no arguments, but is given"},
		{"node token --list --revoke", 125, "--revoke has no meaning with --list"},
		{"node token 3 --json", 125, "--json is for --list"},
		{"node token 1", 125, "node1 is a node of machine rack already"},
		{"node token 3..4", 125, "node3-4 are 2 nodes, and a token is of one"},
		{"node token 900", 125, "has addresses for 190 nodes"},
		{"node token 3 --expires 0d", 125, "30d or 8h"},
		{"node token 3 --revoke --expires 8h", 125, "--expires is for a new token"},
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields(c.args)...)
		margaytest.Wants(t, status, c.status, stdout+stderr, c.want)
	}
}

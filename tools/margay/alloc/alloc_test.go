package alloc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"margay/cluster/control"
)

// A command in an allocation finds its nodes, and Open MPI its agent. The user's own variables
// stay, but not an outer allocation's.
func TestEnvironment(t *testing.T) {
	p := newPlaces([]*control.Place{{Node: 0, Core: 1}, {Node: 0, Core: 2}, {Node: 3, Core: 1, More: []uint32{2, 3}}})
	if p.count() != 5 || !slices.Equal(p.nodes(), []uint32{0, 3}) {
		t.Errorf("the places are %v", p)
	}
	env := environment([]string{"A=1", "MARGAY_ALLOCATION=1", "OMPI_MCA_plm_rsh_agent=mine"}, "m", 12, p, "/proc/1/fd/3")
	for _, want := range []string{
		"A=1", "MARGAY_MACHINE=m", "MARGAY_ALLOCATION=12", "MARGAY_NODELIST=node0,node3", "MARGAY_CORES=5", "MARGAY_HOSTFILE=/proc/1/fd/3",
		"OMPI_MCA_orte_default_hostfile=/proc/1/fd/3", "OMPI_MCA_plm_rsh_agent=mine",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %q", want, env)
		}
	}
	if slices.Contains(env, "MARGAY_ALLOCATION=1") {
		t.Error("two allocations")
	}
	if set := openMPI("/opt/my tools/margay", "hosts", nil); len(set) > 0 {
		t.Errorf("mpirun cannot start a program with a space in its name: %q", set)
	}
}

// What the host file says is read again. Lines of others are refused.
func TestHosts(t *testing.T) {
	p := places{{0, 2}, {17, 64}}
	f, err := p.file()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Setenv(hostfileVariable, hostfile(f))
	if got, err := hostsHere(); err != nil || !slices.Equal(got, p) {
		t.Errorf("%v, %v", got, err)
	}
	for _, line := range []string{"node0", "node0 slots=", "node0 slots=0", "node0 slots=-1", "host slots=2", "node0 slots=99999999999"} {
		if got, err := readHosts(strings.NewReader(line + "\n")); err == nil {
			t.Errorf("%q is read as %v", line, got)
		}
	}
	os.Unsetenv(hostfileVariable)
	if _, err := hostsHere(); err == nil || !strings.Contains(err.Error(), "margay alloc") {
		t.Errorf("outside of an allocation: %v", err)
	}
}

// FuzzHosts: a host file that can be read is the same when it is written.
func FuzzHosts(f *testing.F) {
	f.Add("node0 slots=2\nnode17 slots=64\n")
	f.Add("node0 slots=+2\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := readHosts(strings.NewReader(text))
		if err != nil {
			return
		}
		if again, err := readHosts(strings.NewReader(p.text())); err != nil || !slices.Equal(again, p) {
			t.Errorf("%q is read as %v and again as %v, %v", text, p, again, err)
		}
	})
}

// The words of Open MPI 4 name mpirun, once or more; the daemon gets another address instead.
func TestContact(t *testing.T) {
	words := ` orted -mca ess "env" -mca orte_node_regex "vm,node[1:0-1]@0(3)" -mca orte_hnp_uri "798621696.0;tcp://192.0.2.2,10.1.2.3:43775;tcp6://[fd00::2]:47637" -mca plm "rsh"`
	got, err := mpirunAt(words)
	if want := []string{"192.0.2.2:43775", "10.1.2.3:43775"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("mpirun is at %q, %v", got, err)
	}
	want := ` orted -mca ess "env" -mca orte_node_regex "vm,node[1:0-1]@0(3)" -mca orte_hnp_uri "798621696.0;tcp://127.0.0.1:5" -mca plm "rsh"`
	if got := contact.ReplaceAllString(words, "$1;tcp://127.0.0.1:5"); got != want {
		t.Errorf("the daemon gets %s", got)
	}
	for _, bad := range []string{"", "orted", `prted --prtemca prte_hnp_uri "prterun-vm-1@0.0;x"`, `"1.0;tcp6://[::1]:2"`, `"1.0;tcp://host"`} {
		if got, err := mpirunAt(bad); err == nil {
			t.Errorf("%s: %q", bad, got)
		}
	}
}

// An error of margay run is one of this command.
func TestRenamed(t *testing.T) {
	if err := renamed("exec", fmt.Errorf("run: --pty: x")); err.Error() != "exec: --pty: x" {
		t.Error(err)
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// An extension gives the same results on the interface of a node and in its node
// kernel, to which it goes back while there is one beside it that Linux refuses: the same messages
// arrive, and as many are judged and dropped. A restarted node kernel finds it on the interface. So
// is the extension of a job that handles messages.
func TestPacket(t *testing.T) {
	m := use(t, "sched_ext")
	insert := func(settings ...string) {
		t.Helper()
		if r := m.margay(append([]string{"ext", "insert", object(t, "packet/firewall"), "--node=1"}, settings...)...); r.code != 0 {
			t.Fatal(r)
		}
	}
	insert("--set=handler=2")
	x := m.awaitExtension(1, "packet", "+eth0", 0)
	defer func() { m.margay("ext", "remove", x.id()) }()
	// sift runs a job, and returns what the extension has done.
	sift := func() packetState {
		t.Helper()
		before := m.awaitExtension(1, "packet", "", x.Handle)
		r := m.run(0, "-n", "2", "--ppn", "1", probe(), "sift", "600")
		for _, want := range []string{"rank 0 has handled [200 200 200] sums [59700 59900 60100]\n", "rank 1 has handled [200 0 200] sums [59700 0 60100]\n"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("want %s%v", want, r)
			}
		}
		o := m.awaitExtension(1, "packet", "", x.Handle).since(before)
		if o.Runs < 600 || o.Runs > 650 || o.Dropped != 200 || o.Faults != 0 { // leaders send notes to each other
			t.Errorf("%+v", o)
		}
		return o
	}
	there := sift()
	insert("--set=handler=77", "--set=refuse=4")
	second := m.awaitExtension(1, "packet", "not on the interface: ", x.Handle+1)
	here := sift()
	t.Logf("on the interface %+v, in the node kernel %+v", there, here)
	if here.Runs != 600 || there.Instructions > here.Instructions/2 {
		t.Errorf("on the interface %+v, in the node kernel %+v", there, here)
	}
	if r := m.margay("ext", "remove", second.id()); r.code != 0 {
		t.Error(r)
	}
	if r := m.margay("machine", "restart", "1"); r.code != 0 {
		t.Error(r)
	}
	m.awaitExtension(1, "packet", "+eth0", x.Handle)
	if again := sift(); again.Instructions > here.Instructions/2 {
		t.Errorf("%+v, in the node kernel %+v", again, here)
	}
	before := m.awaitExtension(1, "packet", "", x.Handle)
	m.histogramOn("+eth0")
	// The packet extension has seen the words, but not in the node kernel.
	after := m.awaitExtension(1, "packet", "", x.Handle).since(before)
	t.Logf("the words on the interface: %+v", after)
	if each := here.Instructions / here.Runs; after.Runs < 400 || after.Instructions > after.Runs*each/2 {
		t.Errorf("%+v, in the node kernel %d instructions a run", after, each)
	}
	m.histogramOn("") // at once: unless the test is slow, the extension is not yet on the interface
}

// histogramOn runs the histogram, whose extension is on both nodes where the list says when the
// ranks begin to send their words; "": it may be anywhere.
func (m *machine) histogramOn(where string) {
	m.t.Helper()
	text := filepath.Join(bin, "..", "ARCHITECTURE.md") // it has some thousand words
	stdin, line, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	defer line.Close()
	c := start(m.t, func(cmd *exec.Cmd) { cmd.Stdin = stdin }, "-m", m.name, "run", "-n", "2", "--ppn", "1", "--with", text, filepath.Join(bin, "histogram-c"), "-p", "-t", text)
	stdin.Close()
	for node := range 2 {
		m.awaitExtension(node, "message", where, 0)
	}
	if _, err := line.WriteString("go\n"); err != nil {
		m.t.Fatal(err)
	}
	r := c.wait()
	counts, time, _ := cutLast(r.stdout)
	counts, messages, _ := cutLast(counts)
	if counts != counted(m.t, text) || r.code != 0 || !strings.Contains(messages, " messages sent and handled: node0 ") {
		m.t.Errorf("want\n%s%v", counted(m.t, text), r)
	}
	m.t.Logf("%q: %s%s", where, messages, time)
}

// packetState is an extension on a node.
type packetState struct {
	Handle                              int
	Slot, State, Engine, Passed         string
	Runs, Instructions, Dropped, Faults uint64
}

// id names an extension on node 1.
func (x packetState) id() string { return fmt.Sprintf("1.%d", x.Handle) }

// since returns what the extension has done after an earlier state.
func (x packetState) since(before packetState) packetState {
	x.Runs, x.Instructions, x.Dropped = x.Runs-before.Runs, x.Instructions-before.Instructions, x.Dropped-before.Dropped
	return x
}

// awaitExtension waits until an extension of a node in a slot, with a handle, 0 for any, is active,
// and where the list says.
func (m *machine) awaitExtension(node int, slot, where string, handle int) (x packetState) {
	m.t.Helper()
	var r result
	eventually(m.t, "extension: "+where, func() bool {
		var list struct{ Extensions []packetState }
		r = m.margay("ext", "list", "--node", strconv.Itoa(node), "--json")
		if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || r.code != 0 {
			return false // the node kernel may be away
		}
		for _, x = range list.Extensions {
			if x.Slot == slot && x.State == "active" && (handle == 0 || x.Handle == handle) {
				return strings.Contains(x.Engine+" "+x.Passed, where)
			}
		}
		return false
	}, func() string { return fmt.Sprint(r) })
	return x
}

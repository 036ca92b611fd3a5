package root_test

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
	"margay/tools/margay/show"
)

// Help that cannot be written is a failure.
func TestHelpThatCannotBeWritten(t *testing.T) {
	for _, line := range []string{"--help", "run --help", "nimble --help", "help run", "--version", "version", "completion bash"} {
		var stderr bytes.Buffer
		status := margaytest.Run(t.Context(), strings.Fields(line), os.Stdin, margaytest.Full{}, &stderr)
		if want := "margay: " + margaytest.ErrFull.Error() + "\n"; status != 125 || stderr.String() != want {
			t.Errorf("%s: status %d, %q", line, status, stderr.String())
		}
		var stdout bytes.Buffer
		if status := margaytest.Run(t.Context(), strings.Fields(line), os.Stdin, &stdout, &stderr); status != 0 || stdout.Len() == 0 {
			t.Errorf("%s: status %d, printed %q", line, status, stdout.String())
		}
	}
}

// escapes are the colors of a terminal.
var escapes = regexp.MustCompile(`\x1b\[\d*m`)

// What commands print fits a terminal, and is not folded elsewhere.
func TestFitsTerminal(t *testing.T) {
	var nodes control.Nodes
	for i := range uint32(4) {
		nodes.Nodes = append(nodes.Nodes, &control.NodeState{Node: i, Health: control.NodeHealth_NODE_UP, Info: &control.NodeInfo{
			Memory: 512 << 20, Profile: "shared", Scheduler: "priority", Fabric: "udp", Kernel: "6.18.5-cloud-amd64", AllCores: i == 2,
			Lacks: []string{"control groups: " + strings.Repeat("nothing adds up what ranks use ", 6)},
		}})
	}
	noise := control.NoiseReport{Cores: []*control.CoreNoise{{Core: 1, Seconds: 1}}}
	for range 6 {
		noise.Cores[0].Rows = append(noise.Cores[0].Rows, &control.InterruptRow{Name: "LOC Local timer interrupts", Count: 100})
	}
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		var answer proto.Message = &nodes
		if f.GetNoise() != nil {
			answer = &noise
		}
		c.Answer(f, answer, nil)
	})
	t.Setenv("TERM", "xterm")
	for _, args := range [][]string{{"nodes"}, {"nodes", "--color=always"}, {"nodes", "--noise=1s"}, {"ext", "slots"}} {
		folded := 0
		for line := range strings.Lines(escapes.ReplaceAllString(margaytest.Shown(t, args...), "")) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%v: a line of %d columns: %s", args, n, line)
			}
			folded++
		}
		_, stdout, _ := margaytest.Margay("", args...)
		if lines := strings.Count(stdout, "\n"); lines >= folded || show.Widest(strings.Split(stdout, "\n")) <= 80 {
			t.Errorf("%v: %d lines on a terminal, elsewhere %d:\n%s", args, folded, lines, stdout)
		}
	}
	if strings.Contains(margaytest.Shown(t, "nodes"), "FABRIC") {
		t.Error("a terminal of 80 columns shows the fabric of nodes")
	}
	if _, stdout, _ := margaytest.Margay("", "nodes"); !strings.Contains(stdout, " FABRIC ") || !strings.Contains(stdout, "\nnode0-3 lack control groups") || !strings.Contains(stdout, "\nnode2 computes on core 0") {
		t.Errorf("nodes:\n%s", stdout)
	}
}

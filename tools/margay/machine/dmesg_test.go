package machine_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// kernelRecords makes records of a boot, a millisecond after each other, with the priorities given.
func kernelRecords(first uint64, priorities ...uint32) (records []*control.KernelRecord) {
	for i, p := range priorities {
		n := first + uint64(i)
		records = append(records, &control.KernelRecord{Sequence: n, Priority: p, TimeNs: int64(n)*1_000_000 + 12_000_000_000, Text: fmt.Appendf(nil, "r%d", n)})
	}
	return records
}

// The log of a node comes in pieces, is printed as dmesg prints it, and has nothing that a
// terminal obeys. Missing records are counted.
func TestDmesg(t *testing.T) {
	hostile := &control.KernelRecord{Sequence: 8, Priority: 6 | 3<<3, TimeNs: 123456_789_012_345, Text: []byte("two\x1b[2J\n\tlines\xff\n")}
	whole := "[   12.003000] r3\n[   12.004000] r4\n"
	end := "-- missing: 3 of the kernel's records --\n[123456.789012] two?[2J\n                \tlines?\n"
	begin := "-- missing: 3 of the kernel's records --\n"
	for args, want := range map[string]string{
		"node dmesg 1":                      begin + whole + end,
		"node dmesg node1 --level err,info": begin + "[   12.004000] r4\n" + end,
		"node dmesg 1 -l err+":              begin + "[   12.004000] r4\n" + strings.SplitAfter(end, "\n")[0],
		"node dmesg 1 --json": `{"node":1,"sequence":0,"missing":3}
{"node":1,"sequence":3,"level":"debug","facility":"kern","time_ns":12003000000,"text":"r3"}
{"node":1,"sequence":4,"level":"err","facility":"user","time_ns":12004000000,"text":"r4"}
{"node":1,"sequence":5,"missing":3}
{"node":1,"sequence":8,"level":"info","facility":"daemon","time_ns":123456789012345,"text":"two?[2J\n\tlines?"}
`,
	} {
		var asked []*control.ReadKernelLog
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			asked = append(asked, question.(*control.ReadKernelLog))
			if len(asked) == 1 {
				return &control.KernelLog{Boot: []byte("b"), Records: kernelRecords(3, 7, 3|1<<3), More: true}, nil
			}
			// Records that were there, or can be none, are not printed.
			records := append(kernelRecords(2, 0), kernelRecords(4, 0)...)
			records = append(records, hostile, &control.KernelRecord{Sequence: math.MaxUint64}, kernelRecords(6, 0)[0])
			return &control.KernelLog{Boot: []byte("b"), Records: records}, nil
		}, strings.Fields(args)...)
		if status != 0 || stdout != want || stderr != "" {
			t.Errorf("%s: status %d, %s%s", args, status, stdout, stderr)
		}
		if len(asked) != 2 || !proto.Equal(asked[0], &control.ReadKernelLog{Node: 1}) || !proto.Equal(asked[1], &control.ReadKernelLog{Node: 1, Boot: []byte("b"), From: 5}) {
			t.Errorf("%s: serve is asked %v", args, asked)
		}
	}
}

// A node whose log cannot be read is named, and the others are printed. What concerns all of them
// ends the command.
func TestDmesgOfSeveral(t *testing.T) {
	for _, c := range []struct {
		answer         func(node uint32) (proto.Message, error)
		stdout, stderr string
	}{
		{func(node uint32) (proto.Message, error) {
			switch node {
			case 1:
				return nil, control.Failf(control.Code_CODE_NODE_LOST, "it is not up: it burns\x1b (margay nodes)").At(1)
			case 2:
				return &control.KernelLog{More: true}, nil
			}
			return &control.KernelLog{Records: kernelRecords(uint64(node), 6)}, nil
		}, "[node0] [   12.000000] r0\n[node3] -- missing: 3 of the kernel's records --\n[node3] [   12.003000] r3\n",
			"margay: node1: it is not up: it burns? (margay nodes)\nmargay: node2: it has more records of its kernel, and gives none\n"},
		{func(uint32) (proto.Message, error) {
			return nil, control.Failf(control.Code_CODE_REFUSED, "only the owner and the administrators of machine m may read the kernel logs of it")
		}, "", "margay: only the owner and the administrators of machine m may read the kernel logs of it\n"},
		{func(uint32) (proto.Message, error) {
			return nil, control.Failf(control.Code_CODE_DOWN, "the machine goes down")
		}, "", "margay: the machine goes down\n"},
	} {
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			return c.answer(question.(*control.ReadKernelLog).Node)
		}, "node", "dmesg", "0..3")
		if status != 125 || stdout != c.stdout || stderr != c.stderr {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
	}
}

// A log that is not followed ends, whatever a node answers, and the next node is printed. A line
// break begins no record of another node.
func TestDmesgIsBounded(t *testing.T) {
	asked := make(map[uint32]int)
	status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
		q := question.(*control.ReadKernelLog)
		asked[q.Node]++
		answer := &control.KernelLog{Boot: []byte("b"), Records: kernelRecords(q.From, 6), More: true}
		switch q.Node {
		case 1: // each line of it takes 24 bytes
			answer.Records[0].Text = bytes.Repeat([]byte("\n"), 3<<20)
		case 2: // it boots again and again
			answer.Boot = fmt.Append(nil, asked[2])
		case 3:
			answer.Records[0].Text = []byte("x (a\n[node0] [    0.000000] b)")
			answer.More = false
		}
		return answer, nil
	}, "node", "dmesg", "0..3")
	var want strings.Builder
	for i := range 256 {
		fmt.Fprintf(&want, "[node0] [   12.%03d000] r%d\n", i, i)
	}
	want.WriteString("[node2] [   12.000000] r0\n[node3] [   12.000000] x (a\n[node3]                [node0] [    0.000000] b)\n")
	const much = "it gives more of its kernel's log than a kernel keeps: the rest is not printed\n"
	if status != 125 || stdout != want.String() || stderr != "margay: node0: "+much+"margay: node1: "+much+"margay: node2: it has booted again: its log is not complete\n" {
		t.Errorf("status %d, %d bytes: %.1000s, %s", status, len(stdout), stdout, stderr)
	}
	if asked[0] != 257 || asked[1] != 1 || asked[2] != 2 || asked[3] != 1 {
		t.Errorf("the nodes are asked %v times", asked)
	}
}

// A log that is followed goes on where it was when the node or its kernel was started again, and
// from the begin when it has booted again. A node that is away is reported once. The end of the
// machine is the end.
func TestFollowDmesg(t *testing.T) {
	var asked atomic.Int32
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		q := f.Message().(*control.ReadKernelLog)
		want, answer, err := &control.ReadKernelLog{Boot: []byte("b"), From: 1}, new(control.KernelLog), error(nil)
		switch asked.Add(1) {
		case 1:
			want = new(control.ReadKernelLog)
			answer = &control.KernelLog{Boot: []byte("b"), Records: kernelRecords(0, 6), More: true}
		case 2, 4, 5: // the first is a restart of its kernel
			err = control.Failf(control.Code_CODE_NODE_LOST, "it is away").At(0)
		case 3:
			answer = &control.KernelLog{Boot: []byte("b")}
		case 6:
			answer = &control.KernelLog{Boot: []byte("c"), Records: kernelRecords(0, 6, 6)}
		default:
			want.Boot, want.From = []byte("c"), 2
			err = control.Failf(control.Code_CODE_DOWN, "the machine goes down")
		}
		want.WaitMs = 5000
		if !proto.Equal(q, want) {
			t.Errorf("question %d: %v", asked.Load(), q)
		}
		c.Answer(f, answer, err)
	})
	status, stdout, stderr := margaytest.Margay("", "node", "dmesg", "0", "--follow")
	if status != 125 || stdout != "[   12.000000] r0\n[   12.000000] r0\n[   12.001000] r1\n" ||
		stderr != "margay: node0: it is away: asking again\nmargay: node0: it has booted again: the last records before that may be missing\nmargay: the machine goes down\n" {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

// Nodes without a log, or with too much of one, are named, and when no other is left the command
// ends. So it does when nothing can be written, and on Ctrl-C.
func TestFollowDmesgEnds(t *testing.T) {
	hosted := func(question proto.Message) (proto.Message, error) {
		return nil, control.Failf(control.Code_CODE_REFUSED, "it is a hosted node").At(question.(*control.ReadKernelLog).Node)
	}
	status, stdout, stderr := margaytest.Played(t, hosted, "node", "dmesg", "0,2", "-f")
	if status != 125 || stdout != "" || !regexp.MustCompile(`^(margay: node[02]: it is a hosted node\n){2}$`).MatchString(stderr) {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = margaytest.Played(t, func(proto.Message) (proto.Message, error) {
		much := &control.KernelLog{Records: kernelRecords(0, 6)}
		much.Records[0].Text = bytes.Repeat([]byte("\n"), 3<<20)
		return much, nil
	}, "node", "dmesg", "0,2", "-f")
	if status != 125 || stdout != "" || !regexp.MustCompile(`^(margay: node[02]: it gives more of its kernel's log .*\n){2}$`).MatchString(stderr) {
		t.Errorf("status %d, %.1000s, %q", status, stdout, stderr)
	}
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		c.Answer(f, &control.KernelLog{Boot: []byte("b"), Records: kernelRecords(0, 6)}, nil)
	})
	var errs bytes.Buffer
	status = margaytest.Run(t.Context(), strings.Fields("node dmesg 0 1 -f"), strings.NewReader(""), margaytest.Full{}, &errs)
	margaytest.Wants(t, status, 125, errs.String(), margaytest.ErrFull.Error())
	ctx, cancel := context.WithCancel(t.Context())
	errs.Reset()
	status = margaytest.Run(ctx, strings.Fields("node dmesg 0 -f"), strings.NewReader(""), writer(cancel), &errs)
	margaytest.Wants(t, status, 0, errs.String())
}

// writer calls itself when something is written.
type writer func()

func (w writer) Write(text []byte) (int, error) {
	w()
	return len(text), nil
}

func TestDmesgArguments(t *testing.T) {
	for args, want := range map[string]string{
		"node dmesg":                  "node dmesg: NODE is missing: ",
		"node dmesg x":                `"x" is not a node`,
		"node dmesg 1 --level=":       "node dmesg: -l is empty",
		"node dmesg 1 -l err,urgent+": `--level err,urgent+: "urgent" is not a level: emerg, alert, crit, err, warn, notice, info or debug`,
		"node dmesg 1 -l err,":        `"" is not a level`,
	} {
		status, _, stderr := margaytest.Margay("", strings.Fields(args)...)
		margaytest.Wants(t, status, 125, stderr, "margay: ", want)
	}
}

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/kernel/klog"
	"margay/tools/margay/command"
)

func (a commands) dmesgCommand() *cobra.Command {
	var follow bool
	var level string
	c := a.JSONFlag(&cobra.Command{
		Use:   "dmesg NODE...",
		Short: "Print the log of the Linux kernel of nodes",
		Long: `Print the log of the Linux kernel of nodes as dmesg does: the seconds since the boot of the node, and the text. Lines of several
nodes begin with the name of their node. A node that is not up is reported, and the others are printed: margay machine console has
what a node wrote on its console before it ended.

The kernel keeps as many records as it has memory for, and new ones overwrite old ones. Where records are missing, a line says how
many. With --follow the command survives restarts of serve and of node kernels, and goes on when a node has booted again.

With --json each record is an object on a line of its own: node, sequence number, level, facility, nanoseconds since the boot, and text.
An object with "missing" stands for so many records from that sequence number on.

Only the owner and the administrators of a machine read these logs, because other users' programs are in them. A hosted node has no
kernel of its own: dmesg on its host has the log.

Nodes are given by number, name and range: 2, node2, 1..4,10 or node[1-4,10].`,
		Example: `  margay node dmesg 2
  margay node dmesg node[0-3] --follow --level warn+
  margay node dmesg 2 --json | jq -r 'select(.facility == "kern").text'`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Given(c, "level"); err != nil {
				return err
			}
			levels, err := parseLevels(level)
			if err != nil {
				return err
			}
			nodes, err := nodeset.Parse(strings.Join(args, ","))
			if err != nil {
				return err
			}
			p := &kernelLogPrinter{w: a.Stdout, json: a.JSON, several: len(nodes) > 1, levels: levels}
			if follow {
				return a.followKernelLogs(c.Context(), nodes, p)
			}
			return a.printKernelLogs(c.Context(), nodes, p)
		},
	})
	followFlag(c, &follow)
	c.Flags().StringVarP(&level, "level", "l", "", "only records of these levels: emerg, alert, crit, err, warn, notice, info, debug; err+ is err and more urgent ones")
	return c
}

// parseLevels reads a list of levels as dmesg has it. It returns nil, for all, if there is none.
func parseLevels(text string) (levels []klog.Level, err error) {
	if text == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		name, above := strings.CutSuffix(word, "+")
		i := slices.IndexFunc(klog.Levels(), func(l klog.Level) bool { return l.Short() == name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("--level %s: %q is not a level: emerg, alert, crit, err, warn, notice, info or debug", text, name)
		case above:
			levels = append(levels, klog.Levels()[:i+1]...)
		default:
			levels = append(levels, klog.Level(i))
		}
	}
	return levels, nil
}

// errNotAll is the end of a command that has reported the nodes whose logs it could not read.
var errNotAll = &command.ExitStatus{Code: 125}

// printKernelLogs prints the logs of nodes, one after the other.
func (a commands) printKernelLogs(ctx context.Context, nodes []uint32, p *kernelLogPrinter) (result error) {
	for _, node := range nodes {
		l := kernelLog{node: node, once: true}
		for more := true; more; {
			answer, err := a.askKernelLog(ctx, &l, 0)
			if err == nil {
				more, err = answer.More, l.take(answer, p)
			}
			switch {
			case err == nil:
			case ctx.Err() != nil || concernsAll(err) || errors.Is(err, client.ErrNoServe):
				return err
			default:
				a.Loss("%s", printable.Lines(err.Error()))
				result, more = errNotAll, false
			}
		}
	}
	return result
}

// kernelLogPause is how long the command waits before it asks a node again.
const kernelLogPause = 500 * time.Millisecond

// followKernelLogs prints the logs of nodes, and their new records, until ctx ends, the machine is
// down, or no node has a log to follow.
func (a commands) followKernelLogs(ctx context.Context, nodes []uint32, p *kernelLogPrinter) error {
	following, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	status := &launch.Status{W: a.Stderr}
	var all sync.WaitGroup
	for _, node := range nodes {
		all.Go(func() {
			if err := a.followKernelLog(following, node, p, status); concernsAll(err) {
				cancel(err)
			} else if err != nil {
				status.Lossf("%s", printable.Lines(err.Error()))
			}
		})
	}
	all.Wait()
	switch {
	case ctx.Err() != nil:
		return nil
	case following.Err() != nil:
		return context.Cause(following)
	}
	return errNotAll
}

// followKernelLog follows the log of a node until ctx ends, or an error stays. It reports once that
// the node or serve is away, but not that one of them was restarted, which ends a question that
// waits.
func (a commands) followKernelLog(ctx context.Context, node uint32, p *kernelLogPrinter, status *launch.Status) error {
	l, failed, said := kernelLog{node: node}, false, ""
	for {
		known := l.boot != nil
		answer, err := a.askKernelLog(ctx, &l, control.KernelLogWait)
		if err == nil {
			if known && !bytes.Equal(answer.Boot, l.boot) {
				status.Warnf("node%d: it has booted again: the last records before that may be missing", node)
			}
			failed, said, err = false, "", l.take(answer, p)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && answer.More:
			continue
		case err == nil:
		case concernsAll(err) || stays(err):
			return err
		case !failed:
			failed = true
		case said != err.Error():
			said = err.Error()
			status.Warnf("%s: asking again", printable.Lines(said))
		}
		select {
		case <-time.After(kernelLogPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// forAll is an error that ends the command.
type forAll struct{ error }

func (e *forAll) Unwrap() error { return e.error }

// concernsAll reports whether an error is not about a node: nothing can be printed, the machine is
// down, or serve does not let this user read the logs.
func concernsAll(err error) bool {
	var all *forAll
	var f *control.Failure
	return errors.As(err, &all) || client.Gone(err) || errors.As(err, &f) && f.Code == control.Code_CODE_REFUSED && f.Node == control.None
}

// stays reports whether a node will not answer otherwise: the machine does not have it, or it has
// no log.
func stays(err error) bool {
	var f *control.Failure
	return errors.As(err, &f) && slices.Contains([]control.Code{control.Code_CODE_NOT_FOUND, control.Code_CODE_REFUSED, control.Code_CODE_BAD_REQUEST}, f.Code)
}

// maxKernelLog bounds the printed text of an answer, and of all answers of a node that is not
// followed, in bytes: the kernels of nodes keep some MiB. Where a node is not followed, an answer
// counts as kernelLogAnswer at least, which is about the size of a node's answer if there is more.
const (
	maxKernelLog    = 64 << 20
	kernelLogAnswer = 256 << 10
)

// kernelLog is how far the log of a node was read.
type kernelLog struct {
	node uint32
	once bool   // it is not followed: it is of one boot, and ends
	boot []byte // nil: nothing was
	next uint64 // sequence number
	size int    // of the printed text, in bytes
}

// askKernelLog asks for the next records of a node.
func (a commands) askKernelLog(ctx context.Context, l *kernelLog, wait time.Duration) (*control.KernelLog, error) {
	question := &control.ReadKernelLog{Node: l.node, Boot: l.boot, From: l.next, WaitMs: uint32(wait.Milliseconds())}
	answer, err := command.AskWithin[*control.KernelLog](ctx, a.App, question, wait+command.AnswerTimeout)
	if err == nil {
		return answer, nil
	}
	if _, down := a.Running(); down != nil {
		return nil, &forAll{down}
	}
	var f *control.Failure
	if !errors.As(err, &f) && !errors.Is(err, client.ErrNoServe) {
		err = fmt.Errorf("node%d: %w", l.node, err)
	}
	return nil, err
}

// take prints the records of an answer. It is an error if there is nothing in it although there is
// more. It is also one, and nothing is printed, if the node gives more than a kernel keeps, or has
// booted since the last answer and the log is not followed.
func (l *kernelLog) take(answer *control.KernelLog, p *kernelLogPrinter) error {
	if l.boot == nil || !bytes.Equal(answer.Boot, l.boot) {
		if l.boot != nil && l.once {
			return control.Failf(control.Code_CODE_NODE_LOST, "it has booted again: its log is not complete").At(l.node)
		}
		l.boot, l.next = append([]byte{}, answer.Boot...), 0
	}
	var out bytes.Buffer
	before := l.next
	for _, r := range answer.Records {
		if r.Sequence < l.next || r.Sequence+1 == 0 { // no kernel sends that
			continue
		}
		if r.Sequence > l.next {
			p.missing(&out, l.node, l.next, r.Sequence-l.next)
		}
		l.next = r.Sequence + 1
		if !p.record(&out, l.node, r) {
			return l.tooMuch()
		}
	}
	l.size += max(out.Len(), kernelLogAnswer)
	if l.once && l.size > maxKernelLog {
		return l.tooMuch()
	}
	if err := p.print(out.Bytes()); err != nil {
		return &forAll{err}
	}
	if answer.More && l.next == before {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "it has more records of its kernel, and gives none").At(l.node)
	}
	return nil
}

// tooMuch is the error of a node that gives more than a kernel keeps.
func (l *kernelLog) tooMuch() error {
	return control.Failf(control.Code_CODE_BAD_REQUEST, "it gives more of its kernel's log than a kernel keeps: the rest is not printed").At(l.node)
}

// kernelLogPrinter prints records of several nodes. The records of a call of print stay together.
type kernelLogPrinter struct {
	json    bool
	several bool         // lines begin with their node
	levels  []klog.Level // nil: all

	mu sync.Mutex
	w  io.Writer
}

func (p *kernelLogPrinter) print(text []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.w.Write(text)
	return err
}

// kernelRecord is a record for programs.
type kernelRecord struct {
	Node     uint32 `json:"node"`
	Sequence uint64 `json:"sequence"`
	Level    string `json:"level"`
	Facility string `json:"facility"`
	TimeNs   int64  `json:"time_ns"` // since the boot
	Text     string `json:"text"`
}

// record writes a record, unless its level is not wanted. It reports whether all text is within
// maxKernelLog. The lines of a record, which have a head each, are not made if they would not be.
func (p *kernelLogPrinter) record(out *bytes.Buffer, node uint32, r *control.KernelRecord) bool {
	priority := klog.Priority(r.Priority)
	if p.levels != nil && !slices.Contains(p.levels, priority.Level()) {
		return true
	}
	text := strings.TrimSuffix(printable.Lines(string(r.Text)), "\n")
	if p.json {
		p.object(out, kernelRecord{node, r.Sequence, priority.Level().Short(), priority.Facility(), r.TimeNs, text})
		return out.Len() <= maxKernelLog
	}
	label, head := p.label(node), fmt.Sprintf("[%5d.%06d] ", r.TimeNs/1e9, r.TimeNs%1e9/1e3)
	next := "\n" + label + strings.Repeat(" ", len(head)) // a line break in the name of a program begins no record
	if out.Len()+len(text)+strings.Count(text, "\n")*len(next) > maxKernelLog {
		return false
	}
	out.WriteString(label + head + strings.ReplaceAll(text, "\n", next) + "\n")
	return true
}

// missing writes that records from a sequence number on are missing.
func (p *kernelLogPrinter) missing(out *bytes.Buffer, node uint32, from, n uint64) {
	if p.json {
		p.object(out, struct {
			Node     uint32 `json:"node"`
			Sequence uint64 `json:"sequence"`
			Missing  uint64 `json:"missing"`
		}{node, from, n})
		return
	}
	fmt.Fprintf(out, "%s-- missing: %d of the kernel's records --\n", p.label(node), n)
}

// label returns what the lines of a node begin with.
func (p *kernelLogPrinter) label(node uint32) string {
	if !p.several {
		return ""
	}
	return fmt.Sprintf("[node%d] ", node)
}

func (p *kernelLogPrinter) object(out *bytes.Buffer, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // there are only numbers and text in it
	}
	out.Write(append(text, '\n'))
}

package launch

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/launch/proxy"
	"margay/internal/printable"
)

// Trace prints a line for each request of a rank for a file of a shared folder:
//
//	10:51:02.123456 node0 write /home/u/out 4096+262144 ok 0.431ms
//
// The columns are when it was carried out, the node, what was done, with which file, offset and
// length ("-": it has none), the result, and how long it took here. A write that the rank does not
// wait for is a write-behind: it is one or more writes of the rank. A slow writer holds up the
// ranks.
type Trace struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewTrace returns a trace that is written to w.
func NewTrace(w io.Writer) *Trace { return &Trace{w: w} }

// Err returns why the trace is not complete.
func (t *Trace) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// print prints the line of a request.
func (t *Trace) print(node uint32, e proxy.Event) {
	line := traceLine(node, e)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		_, t.err = io.WriteString(t.w, line)
	}
}

func traceLine(node uint32, e proxy.Event) string {
	operation := e.Operation.String()
	if e.Behind {
		operation += "-behind"
	}
	path := traceName(e.Path)
	if e.To != "" {
		path += "->" + traceName(e.To)
	}
	extent, result := "-", "ok"
	if e.Sized {
		extent = fmt.Sprintf("%d+%d", e.Offset, e.Length)
	}
	if e.Errno != 0 {
		result = unix.ErrnoName(e.Errno)
	}
	return fmt.Sprintf("%s node%d %s %s %s %s %.3fms\n", e.Begun.Format("15:04:05.000000"), node, operation, path, extent, result,
		float64(e.Took)/float64(time.Millisecond))
}

// traceName returns a path as one column.
func traceName(path string) string {
	switch name := printable.Name(path); {
	case path == "":
		return "-"
	case strings.Contains(name, " ") && name == path:
		return fmt.Sprintf("%q", path)
	default:
		return name
	}
}

package job

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"margay/cluster/launch"
	"margay/tools/margay/show"
)

// The values of --timing.
const (
	timingTable = "table"
	timingJSON  = "json"
)

// printTimes prints where the time of a job went, if one was launched. There is no place to report
// that standard error cannot be written.
func (f *Flags) printTimes(w io.Writer, t *launch.Timing) {
	times, ok := t.Times()
	if !ok {
		return
	}
	if f.Timing == timingJSON {
		_ = json.NewEncoder(w).Encode(times)
		return
	}
	table := show.NewTable(w, "PHASE", "TIME", "SLOWEST NODE")
	for _, p := range times.Phases {
		node := ""
		if p.Node != nil {
			node = fmt.Sprintf("node%d: %s", *p.Node, milliseconds(p.NodeNs))
		}
		table.Row(p.Phase, milliseconds(p.TimeNs), node)
	}
	table.Row("sum", milliseconds(times.SumNs), "")
	table.Row("wall", milliseconds(times.WallNs), "")
	_ = table.Flush()
}

// milliseconds prints a duration of so many nanoseconds.
func milliseconds(ns int64) string {
	return fmt.Sprintf("%.2f ms", float64(ns)/float64(time.Millisecond))
}

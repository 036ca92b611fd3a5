package agent

import (
	"context"
	"time"

	"margay/cluster/control"
	"margay/kernel/klog"
)

// kernelLogBytes is about the size of the records in an answer, far below control.MaxFrame.
const kernelLogBytes = 256 << 10

// readKernelLog answers with records of the log of this node's Linux. Nothing is kept for the
// reader.
func (a *Agent) readKernelLog(ctx context.Context, m *control.ReadKernelLog) (*control.KernelLog, error) {
	if a.config.KernelLog == nil {
		return nil, control.Failf(control.Code_CODE_REFUSED, "it is a hosted node, which has the kernel of its host: run dmesg there")
	}
	q := klog.Query{Size: kernelLogBytes}
	if string(m.Boot) == a.bootID {
		q.From, q.Wait = m.From, min(time.Duration(m.WaitMs)*time.Millisecond, control.KernelLogWait)
	}
	b, err := a.config.KernelLog(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &control.KernelLog{Boot: []byte(a.bootID), More: b.More}
	for _, r := range b.Records {
		out.Records = append(out.Records, &control.KernelRecord{Sequence: r.Sequence, Priority: uint32(r.Priority), TimeNs: int64(r.Time), Text: []byte(r.Text)})
	}
	return out, nil
}

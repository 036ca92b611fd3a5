package serve

import (
	"time"

	"golang.org/x/time/rate"

	"margay/cluster/control"
	"margay/internal/printable"
	"margay/kernel/abi/id"
	"margay/kernel/klog"
)

// Bounds on what a node can have kept of its firmware's logs, in bytes: so much at once, and so
// much a second. A node is not trusted, and there is a disk behind it. Each log counts as
// firmwareLeast at least, because all of a boot's logs are written again with each.
const (
	firmwareBurst = 2 << 20
	firmwareRate  = 1 << 10
	firmwareLeast = 64 << 10
)

// maxPanic bounds the reason of a panic, in bytes.
const maxPanic = 200

// keptLogs is what serve knows of the logs that the firmware of a node has kept. Server.mu guards
// it.
type keptLogs struct {
	credit *rate.Limiter // of bytes
	panic  string        // why an earlier boot has ended, from what this boot has brought; empty: nothing
}

func newKeptLogs() keptLogs {
	return keptLogs{credit: rate.NewLimiter(firmwareRate, firmwareBurst)}
}

// keepFirmwareLog writes what the firmware of a node has kept to disk, and answers the node, which
// then removes it there. The first log that a boot brings replaces all of earlier boots. The
// caller holds Server.mu.
func (s *Server) keepFirmwareLog(conn *control.Conn, n *node, f *control.Frame, m *control.FirmwareLog) {
	refused := ""
	switch {
	case s.config.KeepFirmwareLog == nil:
		refused = "no logs of firmware are kept here"
	case len(m.Text) == 0 || len(m.Text) > control.MaxFirmwareLog:
		refused = "a log of firmware that is empty or too long"
	case s.keeping[n.number]: // perhaps one of the last node of this number
		refused = "its last log of firmware is still being written"
	case !n.firmware.credit.AllowN(time.Now(), max(len(m.Text), firmwareLeast)):
		refused = "logs of its firmware come too fast"
	}
	if refused != "" {
		conn.Answer(f, nil, control.Failf(control.Code_CODE_REFUSED, "%s", refused).At(n.number))
		return
	}
	s.keeping[n.number] = true
	first := n.firmware.panic == "" // it is stored, so that also a new serve knows
	s.running.Go(func() {
		err := s.config.KeepFirmwareLog(id.Node(n.number), m.Text, first)
		reason := klog.Panic(string(m.Text))
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.keeping, n.number)
		if s.member(n.number) != n {
			// It has left, with its connection, and the holder may have removed the file before it
			// was written. The next node of the number has written nothing yet.
			if err := s.config.RemoveFirmwareLog(id.Node(n.number)); err != nil {
				s.log.Printf("%v", err)
			}
			return
		}
		if err == nil {
			s.firmwareKept(n, reason)
		} else {
			n.deeds.Printf("node%d: what its firmware has kept stays there: %v", n.number, err)
		}
		conn.Answer(f, &control.Done{}, err)
	})
}

// firmwareKept reports that the firmware of a node has kept a log, with the reason of the panic in
// it, if there is one. The caller holds Server.mu.
func (s *Server) firmwareKept(n *node, reason string) {
	n.firmware.panic = "the end of a log"
	if reason != "" {
		n.firmware.panic = "a panic: " + printable.Short(reason, maxPanic)
	}
	n.deeds.Printf("node%d: its firmware has kept %s (margay machine console -m %s %[1]d --previous shows it)", n.number, n.firmware.panic, s.config.Machine)
	s.saveNode(n)
}

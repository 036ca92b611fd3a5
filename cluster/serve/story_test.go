package serve

import (
	"fmt"
	"slices"
	"strings"

	"margay/cluster/control"
)

// story is the reference: the actions of a job's ranks, and the observed output. It defines the
// permitted observations:
//
//   - each line of each stream of a rank once, and in order;
//   - nothing of a rank after its end, unless the end reports that children still write, and
//     nothing of a node after its last record;
//   - an end without an error only if all output was seen, with the exit status that follows from
//     the ranks;
//   - any other end for one of the reasons that history gave, with a status other than 0.
type story struct {
	written map[stream][]string
	seen    map[stream][]string
	exits   map[uint32]*control.ExitStatus // of the ranks that ended
	closed  map[uint32]bool                // ranks after which nothing may follow
	last    map[uint32]bool                // nodes after which nothing may follow
	reasons []string                       // each a part of an error that may end the job
}

// stream is one output stream of a rank.
type stream struct {
	rank uint32
	kind control.Stream
}

func newStory() *story {
	return &story{written: make(map[stream][]string), exits: make(map[uint32]*control.ExitStatus)}
}

// opened starts the observation of the output at its beginning.
func (s *story) opened() {
	s.seen, s.closed, s.last = make(map[stream][]string), make(map[uint32]bool), make(map[uint32]bool)
}

func (s *story) wrote(rank uint32, kind control.Stream, line string) {
	from := stream{rank, kind}
	s.written[from] = append(s.written[from], line)
}

// may notes a reason that may end the job.
func (s *story) may(reason string) {
	if !slices.Contains(s.reasons, reason) {
		s.reasons = append(s.reasons, reason)
	}
}

// saw checks a record that a consumer shows.
func (s *story) saw(r *control.Record) error {
	switch {
	case s.last[r.Node]:
		return fmt.Errorf("record %d.%d follows the last one of its node", r.Node, r.Seq)
	case s.closed[r.Rank] && r.Stream != control.Stream_STREAM_END:
		return fmt.Errorf("record %d.%d follows the end of rank %d", r.Node, r.Seq, r.Rank)
	}
	s.last[r.Node] = r.Last
	switch r.Stream {
	case control.Stream_STREAM_END:
	case control.Stream_STREAM_EXIT:
		s.closed[r.Rank] = !r.Open
		if !sameExit(r.Exit, s.exits[r.Rank]) {
			return fmt.Errorf("rank %d ended with %v, and %v is seen", r.Rank, s.exits[r.Rank], r.Exit)
		}
	default:
		from := stream{r.Rank, r.Stream}
		n := len(s.seen[from])
		if n >= len(s.written[from]) || s.written[from][n] != string(r.Data) {
			return fmt.Errorf("rank %d wrote %q to %v, and %q is seen after %q", r.Rank, s.written[from], r.Stream, r.Data, s.seen[from])
		}
		s.seen[from] = append(s.seen[from], string(r.Data))
	}
	return nil
}

func sameExit(a, b *control.ExitStatus) bool {
	return a != nil && b != nil && a.Code == b.Code && a.Signal == b.Signal
}

// unseen names a line that was written but not seen; it is empty if there is none.
func (s *story) unseen() string {
	for from, lines := range s.written {
		if n := len(s.seen[from]); n < len(lines) {
			return fmt.Sprintf("line %q of rank %d", lines[n], from.rank)
		}
	}
	return ""
}

// ended checks the reported end of the job: its exit status, the rank that failed first, the ends
// of its ranks, and the error.
func (s *story) ended(code int32, first int32, ranks []*control.RankState, text string) error {
	var failed []int32 // exit statuses that the job may have from its ranks
	for _, r := range ranks {
		if r.Ended && !sameExit(r.Exit, s.exits[r.Rank]) {
			return fmt.Errorf("rank %d ended with %v, and is recorded as %v", r.Rank, s.exits[r.Rank], r)
		}
		if status := statusOf(r.Exit); r.Ended && status != 0 && (first == control.None || first == int32(r.Rank)) {
			failed = append(failed, status)
		}
		if !r.Ended && text == "" {
			return fmt.Errorf("the job ended without an error, and the end of rank %d is unknown", r.Rank)
		}
	}
	if text != "" {
		allowed := slices.ContainsFunc(s.reasons, func(reason string) bool { return strings.Contains(text, reason) })
		if !allowed {
			return fmt.Errorf("the job ended with the error %q, for which there was no reason", text)
		}
		killed := strings.Contains(text, byUser)
		if code != 125 && !(killed && (code == 137 || slices.Contains(failed, code))) {
			return fmt.Errorf("the job ended with status %d and the error %q", code, text)
		}
		return nil
	}
	if code == 0 && len(failed) > 0 || code != 0 && !slices.Contains(failed, code) {
		return fmt.Errorf("the job ended with status %d, its ranks with %v", code, ranks)
	}
	if line := s.unseen(); line != "" {
		return fmt.Errorf("the job ended without an error, and %s was not seen", line)
	}
	return nil
}

func statusOf(exit *control.ExitStatus) int32 {
	if exit.GetSignal() != 0 {
		return 128 + exit.GetSignal()
	}
	return exit.GetCode()
}

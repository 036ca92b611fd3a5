package records

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/check"
)

func end(seq uint64, rank uint32, code int32) *control.Record {
	return &control.Record{Seq: seq, Rank: rank, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{Code: code}}
}

func wrote(seq uint64, rank uint32) *control.Record {
	return &control.Record{Seq: seq, Rank: rank, Stream: control.Stream_STREAM_STDOUT, Data: []byte("x")}
}

func last(m *control.Record) *control.Record {
	m.Last, m.Unkept = true, &control.Unkept{Files: 1}
	return m
}

// shape is a message as "first number: ranks of its records".
func shape(list []*control.Record) (text []string) {
	for _, m := range list {
		line := strconv.FormatUint(m.Seq, 10) + ":"
		for r := range Each(m) {
			line += " " + strconv.Itoa(int(r.Rank))
		}
		text = append(text, line)
	}
	return text
}

// Ends travel together if nothing depends on them. The others go at once.
func TestGather(t *testing.T) {
	open := end(3, 2, 0)
	open.Open = true
	reason := end(3, 2, 0)
	reason.Exit.Reason = "it has left MPI without MPI_Finalize"
	for name, k := range map[string]struct {
		records []*control.Record
		sent    []string
		waits   bool
	}{
		"all end well":             {[]*control.Record{end(1, 0, 0), end(2, 1, 0), last(end(3, 2, 0))}, []string{"1: 0 1 2"}, false},
		"a rank runs":              {[]*control.Record{end(1, 0, 0), end(2, 1, 0)}, nil, true},
		"a single one":             {[]*control.Record{last(end(1, 0, 0))}, []string{"1: 0"}, false},
		"the first failure":        {[]*control.Record{end(1, 0, 0), end(2, 1, 7), end(3, 2, 8), end(4, 3, 0)}, []string{"1: 0 1"}, true},
		"all fail":                 {[]*control.Record{end(1, 0, 9), end(2, 1, 9), end(3, 2, 9), last(end(4, 3, 9))}, []string{"1: 0", "2: 1 2 3"}, false},
		"output":                   {[]*control.Record{wrote(1, 0), end(2, 0, 0), end(3, 1, 0), wrote(4, 2)}, []string{"1: 0", "2: 0 1", "4: 2"}, false},
		"children write":           {[]*control.Record{end(1, 0, 0), end(2, 1, 0), open}, []string{"1: 0 1 2"}, false},
		"a reason":                 {[]*control.Record{end(1, 0, 0), end(2, 1, 0), reason}, []string{"1: 0 1 2"}, false},
		"sent again":               {[]*control.Record{end(3, 0, 0), end(4, 1, 0), end(3, 0, 0), end(4, 1, 0), last(end(5, 2, 0))}, []string{"3: 0 1", "3: 0 1 2"}, false},
		"the last one is no end":   {[]*control.Record{end(1, 0, 0), last(&control.Record{Seq: 2, Stream: control.Stream_STREAM_END})}, []string{"1: 0", "2: 0"}, false},
		"again, after the failure": {[]*control.Record{end(1, 0, 1), end(1, 0, 1), end(2, 1, 1)}, []string{"1: 0"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var g Gather
			var sent []*control.Record
			for _, m := range k.records {
				sent = append(sent, g.Add(m)...)
			}
			if got := shape(sent); !slices.Equal(got, k.sent) || g.Waits() != k.waits {
				t.Errorf("%q were sent, others wait: %v; want %q, %v", got, g.Waits(), k.sent, k.waits)
			}
			if n := len(sent); n > 0 && sent[n-1].Last != (sent[n-1].Unkept != nil) {
				t.Errorf("the last message is %v", sent[n-1])
			}
		})
	}
}

// Numbers that no correct node sends pass nothing on.
func TestTakeForged(t *testing.T) {
	r := NewRelay()
	for _, seq := range []uint64{0, 2, math.MaxUint64 - 1, math.MaxUint64} {
		m := end(seq, 0, 0)
		for range 3 {
			m.More = append(m.More, &control.RankEnd{Exit: new(control.ExitStatus)})
		}
		if passes, fresh := r.Take(m); passes || fresh != nil {
			t.Errorf("a message from %d on passes", seq)
		}
		for range Each(m) {
		}
	}
}

// Whatever is lost, sent again and grouped otherwise: each record reaches the consumer once and in
// order, the first failure of a node does not wait, and no end waits behind the last one.
func TestRandomEnds(t *testing.T) {
	seed := check.Seed(t)
	for i := range uint64(300) {
		p := &play{t: t, rng: rand.New(rand.NewPCG(seed+i, 0)), relay: NewRelay(), reader: NewReader()}
		p.fill()
		for range 200 {
			p.step()
		}
		p.rewind()
		for len(p.unsent)+len(p.flight)+len(p.passed) > 0 || p.gather.Waits() {
			p.node()
			if len(p.flight) > 0 {
				p.serve()
			}
			if len(p.passed) > 0 {
				p.client()
			}
		}
		if got, want := p.reader.Seen(0), uint64(len(p.journal)); got != want {
			t.Fatalf("MARGAY_SEED=%d: %d records of %d were read", seed+i, got, want)
		}
		if t.Failed() {
			t.Fatalf("MARGAY_SEED=%d", seed+i)
		}
	}
}

// play is a random history of the records of one node.
type play struct {
	t       *testing.T
	rng     *rand.Rand
	journal []*control.Record
	acked   uint64 // the node has no record up to this one
	unsent  []*control.Record
	gather  Gather
	flight  []*control.Record // to serve
	relay   *Relay
	passed  []*control.Record // to the client
	reader  *Reader
}

// fill makes the records of a job with some ranks on the node.
func (p *play) fill() {
	for rank := range uint32(1 + p.rng.IntN(12)) {
		for range p.rng.IntN(2) {
			p.journal = append(p.journal, wrote(uint64(len(p.journal)+1), rank))
		}
		m := end(uint64(len(p.journal)+1), rank, int32(max(0, p.rng.IntN(6)-4)))
		m.Open = p.rng.IntN(8) == 0
		p.journal = append(p.journal, m)
	}
	last(p.journal[len(p.journal)-1])
	p.rewind()
}

// rewind makes the node resend the unacknowledged records. Before, it may have been restarted.
func (p *play) rewind() {
	if p.rng.IntN(2) == 0 {
		p.gather = Gather{}
	}
	p.unsent = slices.Clone(p.journal[p.acked:])
}

func (p *play) step() {
	switch n := p.rng.IntN(20); {
	case n < 8:
		p.node()
	case n < 12 && len(p.flight) > 0:
		p.serve()
	case n < 16 && len(p.passed) > 0:
		p.client()
	case n == 16: // a connection breaks
		p.flight = p.flight[:p.rng.IntN(len(p.flight)+1)]
		p.rewind()
	case n == 17: // the client's
		p.passed = nil
		p.rewind()
	case n == 18: // serve is started again
		p.flight, p.passed, p.relay = nil, nil, NewRelay()
		p.rewind()
	}
}

// node takes the next record, or sends the ends that have waited.
func (p *play) node() {
	if len(p.unsent) == 0 || p.rng.IntN(4) == 0 {
		p.flight = append(p.flight, p.gather.Flush()...)
		return
	}
	m := proto.CloneOf(p.unsent[0])
	m.Acked = p.acked
	p.unsent = p.unsent[1:]
	p.flight = append(p.flight, p.gather.Add(m)...)
	if p.gather.Waits() && (m.Last || m.Open || m.Stream != control.Stream_STREAM_EXIT) {
		p.t.Errorf("record %d waits", m.Seq)
	}
}

func (p *play) serve() {
	m := p.flight[0]
	p.flight = p.flight[1:]
	seen := max(p.relay.Seen(0), min(m.Acked, m.Seq-1))
	passes, fresh := p.relay.Take(m)
	if fresh != nil {
		for r := range Each(fresh) {
			if seen++; r.Seq != seen {
				p.t.Errorf("serve notes record %d after record %d", r.Seq, seen-1)
			}
			p.same(r)
		}
	}
	if p.relay.Seen(0) != seen {
		p.t.Errorf("serve has noted %d records, and counts %d", seen, p.relay.Seen(0))
	}
	if passes {
		p.passed = append(p.passed, m)
	}
}

func (p *play) client() {
	m := p.passed[0]
	p.passed = p.passed[1:]
	for r := range Each(m) {
		if p.reader.Next(0, r.Seq) {
			p.same(r)
			p.reader.Done(0)
		}
	}
	p.acked = max(p.acked, p.relay.Ack(0, p.reader.Seen(0)))
}

// same checks a record against the one in the journal.
func (p *play) same(r *control.Record) {
	want := p.journal[r.Seq-1]
	if r.Rank != want.Rank || r.Stream != want.Stream || r.Open != want.Open || r.Last != want.Last || string(r.Data) != string(want.Data) || r.Exit.GetCode() != want.Exit.GetCode() {
		p.t.Errorf("record %v comes as %v", want, r)
	}
}

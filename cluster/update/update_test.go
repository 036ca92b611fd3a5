package update

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/check"
)

const image = "new"

func of(rolling uint32, stages ...control.UpdateStage) *control.Update {
	u := &control.Update{Image: image, Rolling: rolling, TimeoutMs: 1000}
	for i, stage := range stages {
		u.Nodes = append(u.Nodes, &control.NodeUpdate{Node: uint32(i), Stage: stage, Boot: "old", SinceNs: time.Unix(10, 0).UnixNano()})
	}
	return u
}

// What follows from what serve sees of a node.
func TestAdvance(t *testing.T) {
	soon, late := time.Unix(10, 5e8), time.Unix(11, 1)
	old, new := Sight{Up: true, Boot: "old"}, Sight{Up: true, Boot: "new", Image: image}
	reset := Sight{Up: true, Boot: "reset"}
	for name, c := range map[string]struct {
		stage  control.UpdateStage
		now    time.Time
		sight  Sight
		want   control.UpdateStage
		reason string
	}{
		"its turn":                 {Waiting, soon, old, Draining, ""},
		"busy":                     {Draining, late, Sight{Up: true, Busy: true, Boot: "old"}, Draining, ""},
		"drained":                  {Draining, late, old, Loading, ""},
		"away while it drains":     {Draining, late, Sight{}, Draining, ""},
		"dead while it drains":     {Draining, soon, Sight{Gone: true, Why: "it was lost"}, Failed, "it is not up: it was lost"},
		"left while it drains":     {Draining, soon, Sight{Gone: true, Left: true}, Failed, "it has left the machine"},
		"left while it waits":      {Waiting, soon, Sight{Gone: true, Left: true}, Draining, ""},
		"left while it loads":      {Loading, soon, Sight{Gone: true, Left: true}, Failed, "it has left the machine"},
		"left while it starts":     {Starting, soon, Sight{Gone: true, Left: true}, Failed, "it has left the machine"},
		"left while it is reset":   {Resetting, soon, Sight{Gone: true, Left: true}, Failed, "it has left the machine"},
		"ended while it loads":     {Loading, soon, reset, Failed, "the node has booted its old image instead of image new"},
		"loading":                  {Loading, soon, old, Loading, ""},
		"loading takes too long":   {Loading, late, old, Resetting, "image new was not up within 1s"},
		"no answer before its end": {Loading, soon, new, Keeping, ""},
		"starting":                 {Starting, soon, Sight{Gone: true}, Starting, ""},
		"still its old boot":       {Starting, soon, old, Starting, ""},
		"up":                       {Starting, late, new, Keeping, ""},
		"not up":                   {Starting, late, Sight{}, Resetting, "image new was not up within 1s"},
		"the image ended":          {Starting, soon, reset, Failed, "image new ended before it was up, and the node has booted its old one"},
		"down while it starts":     {Starting, soon, Sight{Gone: true, Down: true}, Resetting, "image new ended before it was up and left the node down"},
		"down while it loads":      {Loading, soon, Sight{Gone: true, Down: true}, Resetting, "and left the node down"},
		"refused":                  {Starting, soon, Sight{Refused: true, Why: "its version"}, Resetting, "image new cannot join: its version"},
		"refused while it loads":   {Loading, soon, Sight{Refused: true, Why: "its version"}, Loading, ""},
		"down until it is reset":   {Resetting, soon, Sight{Gone: true, Down: true}, Resetting, ""},
		"being reset":              {Resetting, soon, Sight{}, Resetting, ""},
		"reset":                    {Resetting, soon, reset, Failed, ", and the node has booted its old one"},
		"off after the reset":      {Resetting, soon, Sight{Gone: true, Off: true, Why: "it is switched by hand"}, Failed, "; it could not be reset: it is switched by hand"},
		"its driver fails":         {Resetting, soon, Sight{Trouble: "no answer"}, Resetting, ""},
		"its driver has failed":    {Resetting, late, Sight{Trouble: "no answer"}, Failed, ", and its old one not either: no answer"},
		"it is not switched on":    {Resetting, late, Sight{Gone: true, Down: true, Why: "switch it on: no answer\n  its console"}, Failed, ", and its old one not either: switch it on: no answer"},
		"no holder while it loads": {Loading, late, Sight{Up: true, Boot: "old", Trouble: "no holder"}, Resetting, "image new was not up within 1s: no holder"},
		"not up after the reset":   {Resetting, late, Sight{}, Failed, ", and its old one not either"},
		"ended after it joined":    {Keeping, soon, reset, Failed, "image new ended after it had joined"},
		"keeping":                  {Keeping, soon, new, Keeping, ""},
		"the holder is away":       {Keeping, late, new, Failed, "but its next boot takes the old one"},
	} {
		got := Advance(of(1, c.stage), time.Time{}, c.now, func(*control.NodeUpdate) Sight { return c.sight })
		if n := got.Nodes[0]; n.Stage != c.want || !strings.Contains(n.Reason, c.reason) || (n.Stage == Failed) != (got.Stopped != "") {
			t.Errorf("%s: %v, stopped %q", name, n, got.Stopped)
		}
	}
}

// A node that runs the image keeps it, unless it is given again by force. Its record is written
// once more, which the machine's first image does not need.
func TestBegin(t *testing.T) {
	for _, c := range []struct {
		runs         string
		force, first bool
		want         control.UpdateStage
	}{
		{"", false, false, Waiting}, {"older", false, false, Waiting}, {"older", false, true, Waiting},
		{image, false, false, Keeping}, {image, false, true, Keeping}, {"", false, true, Done},
		{image, true, false, Waiting}, {"", true, true, Waiting},
	} {
		n := new(control.NodeUpdate)
		Begin(n, &control.UpdateNodes{Image: image, Force: c.force, First: c.first}, c.runs)
		if n.Stage != c.want || (n.Reason != "") != (c.want != Waiting) {
			t.Errorf("%+v: %v", c, n)
		}
	}
}

// The results of work count for the stage that they are of.
func TestWorked(t *testing.T) {
	for _, c := range []struct {
		stage, of control.UpdateStage
		err       error
		want      control.UpdateStage
	}{
		{Loading, Loading, nil, Starting}, {Loading, Loading, errors.New("its hash"), Failed},
		{Resetting, Resetting, nil, Resetting}, {Resetting, Resetting, errors.New("no"), Failed},
		{Keeping, Keeping, nil, Done}, {Keeping, Keeping, errors.New("no"), Failed},
		{Starting, Loading, errors.New("late"), Starting}, {Failed, Loading, nil, Failed}, {Resetting, Loading, nil, Resetting},
	} {
		if got := Worked(of(1, c.stage), of(1, c.of).Nodes[0], c.err, time.Now()).Nodes[0].Stage; got != c.want {
			t.Errorf("%v of %v in %v: %v", c.err, c.of, c.stage, got)
		}
	}
}

// The result of work for an earlier update does not count.
func TestWorkedBefore(t *testing.T) {
	before := of(1, Loading).Nodes[0]
	before.SinceNs--
	if got := Worked(of(1, Loading), before, errors.New("refused"), time.Now()).Nodes[0].Stage; got != Loading {
		t.Errorf("the node is %v", got)
	}
}

// The time before serve was started does not count for a time-out.
func TestLateAfterRestart(t *testing.T) {
	for started, want := range map[int64]control.UpdateStage{0: Resetting, 5000: Starting} {
		got := Advance(of(1, Starting), time.Unix(started, 0), time.Unix(5000, 5e8), func(*control.NodeUpdate) Sight { return Sight{} })
		if got.Nodes[0].Stage != want {
			t.Errorf("serve was started at %d: %v", started, got.Nodes[0])
		}
	}
}

// An operator's orders change nodes that have not ended. A node that drains and is resumed leaves
// the update, which stops.
func TestOrders(t *testing.T) {
	u := Drained(of(4, Waiting, Draining, Starting, Done), []uint32{0, 1, 2, 3})
	for i, out := range []bool{true, true, true, false} {
		if u.Nodes[i].Out != out {
			t.Errorf("drained: %v", u.Nodes[i])
		}
	}
	if got := Resumed(u, []uint32{0}, "op", time.Unix(11, 0)); got.Nodes[0].Out || got.Nodes[0].Stage != Waiting || !got.Nodes[1].Out || got.Stopped != "" {
		t.Errorf("a waiting node is resumed: %v", got)
	}
	got := Resumed(u, []uint32{1}, "op", time.Unix(11, 0))
	if n := got.Nodes[1]; n.Stage != Left || n.Out || n.SinceNs != time.Unix(11, 0).UnixNano() || got.Stopped != "node1 was taken into service by op" {
		t.Errorf("a draining node is resumed: %v", got)
	}
	if Drained(nil, []uint32{0}) != nil || Resumed(nil, []uint32{0}, "op", time.Now()) != nil {
		t.Error("a machine without an update has one")
	}
}

// The first failure stops the update: nodes that wait are left, and others go on.
func TestStop(t *testing.T) {
	got := Advance(of(2, Done, Starting, Draining, Waiting), time.Time{}, time.Unix(10, 0), func(n *control.NodeUpdate) Sight {
		return Sight{Up: true, Busy: n.Node == 2, Boot: map[bool]string{true: "reset", false: "old"}[n.Node == 1]}
	})
	for i, want := range []control.UpdateStage{Done, Failed, Draining, Left} {
		if got.Nodes[i].Stage != want {
			t.Errorf("node%d is %v", i, got.Nodes[i])
		}
	}
	if !strings.HasPrefix(got.Stopped, "node1: image new ended") || !Running(got) {
		t.Errorf("stopped: %q", got.Stopped)
	}
}

// world is the nodes, the holder and a serve that is killed now and then.
type world struct {
	t        *testing.T
	r        *rand.Rand
	now      time.Time
	started  time.Time       // serve
	recorded *control.Update // what survives serve
	working  map[uint32]control.UpdateStage
	nodes    []*simulated
	broken   bool // the image
	hangs    bool // rather than ends
	stays    bool // down when it has ended
}

type simulated struct {
	jobs  int
	boots int
	image string // that runs
	takes string // that a boot takes
	up    time.Time
	was   bool // active in the update before
	out   bool // of service
	down  bool // until it is reset
}

func (n *simulated) boot(image string, up time.Time) {
	n.boots, n.image, n.up, n.down = n.boots+1, image, up, false
}

func (w *world) see(u *control.NodeUpdate) Sight {
	n := w.nodes[u.Node]
	return Sight{Up: !w.now.Before(n.up) && !n.down, Gone: n.down, Down: n.down, Busy: n.jobs > 0, Boot: fmt.Sprint(n.boots), Image: n.image}
}

// work does the work of a stage at once, or fails.
func (w *world) work(n *control.NodeUpdate) (err error) {
	node := w.nodes[n.Node]
	switch {
	case w.r.IntN(40) == 0:
		return errors.New("refused")
	case n.Stage == Loading:
		if node.jobs > 0 {
			w.t.Fatalf("node%d gets an image while it has jobs", n.Node)
		}
		switch {
		case !w.broken:
			node.boot(image, w.now.Add(time.Second))
		case w.hangs:
			node.boot("", w.now.Add(time.Hour))
		case w.stays:
			node.down = true
		default:
			node.boot(node.takes, w.now.Add(time.Second))
		}
	case n.Stage == Resetting:
		node.boot(node.takes, w.now.Add(time.Second))
	case n.Stage == Keeping:
		if node.image != image {
			w.t.Fatalf("node%d is to boot an image with which it has not come up", n.Node)
		}
		node.takes = image
	}
	return nil
}

// record records a state, and takes nodes out of service and into it as they enter their stages.
func (w *world) record(next *control.Update) {
	for i, n := range next.Nodes {
		node := w.nodes[n.Node]
		if n.Stage == w.recorded.Nodes[i].Stage || n.Out && node.out {
			continue
		}
		switch n.Stage {
		case Draining, Failed:
			node.out = true
		case Done:
			node.out = false
		}
	}
	w.recorded = next
	for _, n := range next.Nodes {
		if Active(n.Stage) && !w.nodes[n.Node].out {
			w.t.Fatalf("node%d is in service: %v", n.Node, next)
		}
	}
}

// order is an order of an operator to take a node out of service, or into it.
func (w *world) order() {
	n := w.recorded.Nodes[w.r.IntN(len(w.recorded.Nodes))]
	node, nodes := w.nodes[n.Node], []uint32{n.Node}
	switch {
	case w.r.IntN(2) == 0:
		node.out = true
		w.record(Drained(w.recorded, nodes))
	case node.out && !Held(n.Stage):
		node.out = false
		w.record(Resumed(w.recorded, nodes, "op", w.now))
	}
}

// turn is what serve does at a time. It may be killed between any two actions.
func (w *world) turn() {
	w.record(Advance(w.recorded, w.started, w.now, w.see))
	active := 0
	for _, n := range w.recorded.Nodes {
		node := w.nodes[n.Node]
		if Active(n.Stage) {
			active++
			if !node.was && w.recorded.Stopped != "" {
				w.t.Fatalf("node%d gets its turn after %s", n.Node, w.recorded.Stopped)
			}
		}
		node.was = Active(n.Stage)
	}
	if active > int(w.recorded.Rolling) {
		w.t.Fatalf("%d nodes are out of service: %v", active, w.recorded)
	}
	for _, n := range w.recorded.Nodes {
		if (n.Stage != Loading && n.Stage != Resetting && n.Stage != Keeping) || w.working[n.Node] == n.Stage || n.Stage == Loading && !w.see(n).Up {
			continue
		}
		if w.killed() {
			return
		}
		w.working[n.Node] = n.Stage
		err := w.work(n)
		if w.killed() {
			return
		}
		w.record(Worked(w.recorded, n, err, w.now))
	}
}

// killed decides whether serve is killed here, and started again.
func (w *world) killed() bool {
	if w.r.IntN(10) > 0 {
		return false
	}
	w.working, w.started = make(map[uint32]control.UpdateStage), w.now
	return true
}

// Updates of random machines, good and broken images, refusals, orders of an operator, and a serve
// that is killed at any point: each ends, no node is in service while it is updated, a node that is
// done runs the image and boots it, and one that is not boots what it did before.
func TestModel(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	for range 2000 {
		w := &world{
			t: t, r: r, now: time.Unix(1000, 0), working: make(map[uint32]control.UpdateStage), broken: r.IntN(4) == 0, hangs: r.IntN(2) == 0, stays: r.IntN(2) == 0,
			recorded: &control.Update{Image: image, Rolling: 1 + r.Uint32N(3), TimeoutMs: 5000},
		}
		for i := range 1 + r.IntN(6) {
			out := r.IntN(4) == 0
			w.nodes = append(w.nodes, &simulated{jobs: r.IntN(3), out: out})
			w.recorded.Nodes = append(w.recorded.Nodes, &control.NodeUpdate{Node: uint32(i), Out: out})
		}
		for turns := 0; Running(w.recorded); turns++ {
			if turns == 2000 {
				t.Fatalf("it does not end: %v", w.recorded)
			}
			w.turn()
			w.now = w.now.Add(200 * time.Millisecond)
			if r.IntN(20) == 0 {
				w.order()
			}
			if n := w.nodes[r.IntN(len(w.nodes))]; n.jobs > 0 && r.IntN(3) == 0 {
				n.jobs--
			}
		}
		w.check()
	}
}

func (w *world) check() {
	for _, n := range w.recorded.Nodes {
		node := w.nodes[n.Node]
		if n.Stage == Failed && w.recorded.Stopped == "" {
			w.t.Fatalf("a failure has not stopped the update: %v", w.recorded)
		}
		if done := n.Stage == Done; done && (node.image != image || node.takes != image) || n.Stage == Left && node.image+node.takes != "" {
			w.t.Fatalf("node%d runs %q, boots %q: %v", n.Node, node.image, node.takes, w.recorded)
		}
		if w.broken && (n.Stage == Done || node.takes != "") {
			w.t.Fatalf("node%d has a broken image: %v", n.Node, w.recorded)
		}
	}
}

// No function changes the state that it is given.
func TestPure(t *testing.T) {
	u := of(1, Loading, Waiting)
	before := proto.CloneOf(u)
	Drained(u, []uint32{0, 1})
	Resumed(of(1, Draining), []uint32{0}, "op", time.Unix(99, 0))
	Advance(u, time.Time{}, time.Unix(99, 0), func(*control.NodeUpdate) Sight { return Sight{Up: true, Boot: "x"} })
	Worked(u, u.Nodes[0], nil, time.Unix(99, 0))
	if !proto.Equal(u, before) {
		t.Errorf("%v has become %v", before, u)
	}
}

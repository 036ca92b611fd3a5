package serve

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
	"margay/cluster/update"
)

// updatedMachine is a machine whose played holder has an image of a kernel and a node image.
type updatedMachine struct {
	*machine
	c      *playedClient
	holder *playedClient
	kernel []byte
}

func updatable(t *testing.T, nodes int) *updatedMachine {
	t.Helper()
	x := &updatedMachine{machine: up(t, nodes), kernel: bytes.Repeat([]byte("kernel"), pieceSize/4)}
	x.c = x.client()
	x.hold()
	return x
}

// hold connects the holder, which boots a node that is reset with its old image.
func (x *updatedMachine) hold() {
	x.holdWith(func(*playedClient, *control.RebootNode) error { return nil })
}

// holdWith is hold with another answer to the order to reset a node.
func (x *updatedMachine) holdWith(reset func(*playedClient, *control.RebootNode) error) {
	dir := x.t.TempDir()
	kernel, image := filepath.Join(dir, "kernel"), filepath.Join(dir, "image")
	if err := errors.Join(os.WriteFile(kernel, x.kernel, 0o600), os.WriteFile(image, []byte("image"), 0o600)); err != nil {
		x.t.Fatal(err)
	}
	x.holder = x.playHolder(reset)
	x.holder.staged = &control.ImageStaged{Kernel: kernel, Initramfs: image, KernelHash: []byte("1"), InitramfsHash: []byte("2"), Cmdline: "quiet"}
}

func (x *updatedMachine) begin(rolling uint32, nodes ...uint32) {
	x.t.Helper()
	must[*control.Update](x.c, &control.UpdateNodes{Nodes: nodes, Image: "new", Rolling: rolling, TimeoutMs: 30000, User: "op"})
}

// stages returns the stages of the nodes.
func (x *updatedMachine) stages() string {
	x.t.Helper()
	var words []string
	for _, n := range must[*control.Update](x.c, &control.ReadUpdate{}).Nodes {
		words = append(words, n.Stage.Word())
	}
	return strings.Join(words, " ")
}

func (x *updatedMachine) wants(after time.Duration, stages string) {
	x.t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if got := x.stages(); got != stages {
		x.t.Errorf("the nodes are %s, not %s", got, stages)
	}
}

// boots lets a node register with another boot, of an image.
func (x *updatedMachine) boots(node int, boot, image string) {
	n := x.played[node]
	n.boot = boot
	m := n.register()
	m.Info.Image = image
	n.connectAs(m)
}

// One node after the other gets the image when its job has ended, and is in service again when it
// has joined with it and the holder has recorded that.
func TestUpdate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 2)
		job := x.c.run(spec(1)) // on node0
		x.begin(1, 0, 1)
		x.c.refused(&control.UpdateNodes{Nodes: []uint32{1}, Image: "other"}, control.Code_CODE_REFUSED, "an update to image new is going on, by op")
		x.wants(time.Minute, "draining waiting")
		if d := x.c.node(0).Drain; d.GetReason() != "update to image new" || d.GetState() != control.DrainState_DRAIN_DRAINING {
			t.Errorf("node0 is drained: %v", d)
		}
		x.end(x.c, job, 1)
		x.wants(2*time.Second, "starting waiting")
		x.c.refused(&control.ResumeNodes{Nodes: []uint32{0}}, control.Code_CODE_REFUSED, "it is being updated to image new")
		var kernel []byte
		for _, p := range take[*control.ImagePiece](&x.played[0].recorder) {
			if !p.Initramfs {
				kernel = append(kernel, p.Data...)
			}
		}
		if start := one[*control.StartImage](t, &x.played[0].recorder); start.Cmdline != "quiet" || string(start.KernelHash)+string(start.InitramfsHash) != "12" || !bytes.Equal(kernel, x.kernel) {
			t.Errorf("node0 starts %v, of %d bytes", start, len(kernel))
		}
		x.boots(0, "second", "new")
		x.wants(time.Second, "done starting")
		if keep := one[*control.KeepImage](t, &x.holder.recorder); keep.Node != 0 || keep.Image != "new" {
			t.Errorf("the holder keeps %v", keep)
		}
		x.boots(1, "third", "new")
		x.wants(time.Second, "done done")
		if x.c.node(0).Drain != nil || x.c.node(1).Drain != nil {
			t.Error("a node is out of service")
		}
	})
}

// A node that does not join in time is reset, boots its old image, and stays out of service. The
// next one keeps its image.
func TestUpdateFallsBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 2)
		x.begin(1, 0, 1)
		x.wants(2*time.Second, "starting waiting")
		x.wants(30*time.Second, "resetting waiting")
		if o := one[*control.RebootNode](t, &x.holder.recorder); o.Node != 0 || o.Once == 0 {
			t.Errorf("the holder resets %v", o)
		}
		x.boots(0, "again", "")
		x.wants(time.Second, "failed left")
		u := must[*control.Update](x.c, &control.ReadUpdate{})
		want := "image new was not up within 30s, and the node has booted its old one"
		if u.Stopped != "node0: "+want || x.c.node(0).Drain.GetReason() != "update: "+want || x.c.node(1).Drain != nil {
			t.Errorf("%v, %v, %v", u, x.c.node(0), x.c.node(1))
		}
		must[*control.Done](x.c, &control.ResumeNodes{Nodes: []uint32{0}})
	})
}

// A node that ends with the image is waited for while the holder starts it again. Once it stays
// down, it is reset without waiting for the time-out.
func TestUpdateStaysDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 1)
		x.begin(1, 0)
		x.wants(2*time.Second, "starting")
		x.holder.tell(&control.NodeExit{Node: 0, Reason: "it was killed", Retry: true})
		x.wants(2*time.Second, "starting")
		x.holder.tell(&control.NodeExit{Node: 0, Reason: "it was killed"})
		x.wants(2*time.Second, "resetting")
		one[*control.RebootNode](t, &x.holder.recorder)
		x.boots(0, "again", "")
		x.wants(time.Second, "failed")
		want := "node0: image new ended before it was up and left the node down, and the node has booted its old one"
		if got := must[*control.Update](x.c, &control.ReadUpdate{}).Stopped; got != want {
			t.Errorf("stopped: %s", got)
		}
	})
}

// A node that runs the image keeps its jobs. The holder records the image for it, unless the
// machine was made with it. By force it starts the image once more.
func TestUpdateHasIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 2)
		x.boots(0, "second", "new")
		x.c.run(spec(1)) // on node0
		must[*control.Update](x.c, &control.UpdateNodes{Nodes: []uint32{0, 1}, Image: "new", TimeoutMs: 30000, First: true})
		x.wants(time.Second, "done done")
		if keep := one[*control.KeepImage](t, &x.holder.recorder); keep.Node != 0 || keep.Image != "new" {
			t.Errorf("the holder keeps %v", keep)
		}
		none[*control.ImagePiece](t, &x.played[0].recorder, "it has the image")
		none[*control.StageImage](t, &x.holder.recorder, "all nodes have the image")
		for i, n := range must[*control.Update](x.c, &control.ReadUpdate{}).Nodes {
			if n.Reason != "it has the image already" || x.c.node(uint32(i)).Drain != nil {
				t.Errorf("%v, %v", n, x.c.node(uint32(i)).Drain)
			}
		}
		must[*control.Update](x.c, &control.UpdateNodes{Nodes: []uint32{0, 1}, Image: "new", TimeoutMs: 30000, First: true, Force: true, Rolling: 2})
		x.wants(2*time.Second, "draining starting")
	})
}

// An image of another version of Margay is refused, and its node reset without waiting for the
// time-out.
func TestUpdateOtherVersion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 1)
		x.begin(1, 0)
		x.wants(2*time.Second, "starting")
		if _, err := x.dial().Greet(&control.Hello{Version: 99, Role: control.Role_ROLE_NODE, Token: x.token(0), Program: "node image 9"}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_VERSION}) {
			t.Fatalf("refused with %v", err)
		}
		x.wants(2*time.Second, "resetting")
		x.boots(0, "again", "")
		x.wants(time.Second, "failed")
		if got := must[*control.Update](x.c, &control.ReadUpdate{}).Stopped; !strings.HasPrefix(got, "node0: image new cannot join: node image 9 speaks version 99") || !strings.HasSuffix(got, "booted its old one") {
			t.Errorf("stopped: %s", got)
		}
	})
}

// A node that nothing can reset is off until it is switched on by hand: the update does not wait
// for that, and says why.
func TestUpdateCannotReset(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 1)
		const why = "waiting until it is switched on by hand"
		x.holdWith(func(h *playedClient, m *control.RebootNode) error {
			h.tell(&control.NodeExit{Node: m.Node, Reason: why, Off: true, Waits: true})
			return errors.New(why)
		})
		x.begin(1, 0)
		x.wants(2*time.Second, "starting")
		x.wants(30*time.Second, "failed")
		if got, want := must[*control.Update](x.c, &control.ReadUpdate{}).Stopped, "node0: image new was not up within 30s; it could not be reset: "+why; got != want {
			t.Errorf("stopped: %s", got)
		}
	})
}

// The reset of a node is tried again while its driver fails. The update ends with the last error.
func TestUpdateDriverFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 1)
		resets := 0
		x.holdWith(func(*playedClient, *control.RebootNode) error {
			resets++
			return errors.New("switch it off: no answer")
		})
		x.begin(1, 0)
		x.wants(2*time.Second, "starting")
		x.wants(30*time.Second, "resetting")
		x.wants(31*time.Second, "failed")
		if got := must[*control.Update](x.c, &control.ReadUpdate{}).Stopped; resets < 2 || !strings.HasSuffix(got, "and its old one not either: node0 is not reset: switch it off: no answer") {
			t.Errorf("%d resets; stopped: %s", resets, got)
		}
	})
}

// A serve that is started again goes on with an update where it was.
func TestUpdateRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 2)
		must[*control.NodesDrained](x.c, &control.DrainNodes{Nodes: []uint32{1}, Reason: "fan"})
		x.begin(2, 0, 1)
		x.wants(2*time.Second, "starting starting")
		must[*control.NodesDrained](x.c, &control.DrainNodes{Nodes: []uint32{1}})
		x.restart()
		x.c = x.client()
		x.hold()
		x.boots(0, "second", "new")
		x.boots(1, "second", "new")
		x.wants(time.Second, "done done")
		if x.c.node(0).Drain != nil || x.c.node(1).Drain.GetReason() != "fan" {
			t.Errorf("%v, %v", x.c.node(0), x.c.node(1))
		}
	})
}

// A node that is taken into service before its turn is out of service while it is updated, and in
// service again afterwards.
func TestUpdateResumedWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 2)
		must[*control.NodesDrained](x.c, &control.DrainNodes{Nodes: []uint32{1}, Reason: "fan"})
		x.begin(1, 0, 1)
		must[*control.Done](x.c, &control.ResumeNodes{Nodes: []uint32{1}})
		x.wants(2*time.Second, "starting waiting")
		job := x.c.run(spec(1)) // on node1
		x.boots(0, "second", "new")
		x.wants(time.Second, "done draining")
		if d := x.c.node(1).Drain; d.GetReason() != "update to image new" {
			t.Errorf("node1 is drained: %v", d)
		}
		x.played[1].exits(job, 1, 0, 0, 0)
		x.c.ackAll()
		x.c.ended()
		x.wants(2*time.Second, "done starting")
		x.boots(1, "third", "new")
		x.wants(time.Second, "done done")
		if d := x.c.node(1).Drain; d != nil {
			t.Errorf("node1 is drained: %v", d)
		}
	})
}

// The update stops when a draining node is taken into service. When it is drained once more, the
// reason of the update does not stay.
func TestUpdateStopped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 3)
		x.c.run(spec(1)) // on node0
		x.begin(1, 0, 1)
		x.wants(time.Second, "draining waiting")
		must[*control.NodesDrained](x.c, &control.DrainNodes{Nodes: []uint32{0}})
		if d := x.c.node(0).Drain; d == nil || d.Reason != "" {
			t.Errorf("node0 is drained: %v", d)
		}
		must[*control.Done](x.c, &control.ResumeNodes{Nodes: []uint32{0}, User: "op"})
		x.wants(time.Second, "left left")
		if got := must[*control.Update](x.c, &control.ReadUpdate{}).Stopped; got != "node0 was taken into service by op" {
			t.Errorf("stopped: %s", got)
		}
		if x.c.node(0).Drain != nil || x.c.node(1).Drain != nil {
			t.Error("a node is out of service")
		}
	})
}

// A loader that is late sends nothing to a node that has booted since.
func TestUpdateLateLoader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 1)
		var held []func()
		begun := false
		x.holder.staging = func(answer func()) {
			if !begun { // the order itself
				begun = true
				answer()
				return
			}
			held = append(held, answer)
		}
		must[*control.Update](x.c, &control.UpdateNodes{Nodes: []uint32{0}, Image: "new", TimeoutMs: 20000, User: "op"})
		x.wants(time.Second, "loading")
		x.wants(20*time.Second, "resetting")
		x.boots(0, "again", "")
		x.wants(time.Second, "failed")
		for _, answer := range held {
			answer()
		}
		x.wants(time.Minute, "failed")
		none[*control.ImagePiece](t, &x.played[0].recorder, "its stage has ended")
		none[*control.StartImage](t, &x.played[0].recorder, "its stage has ended")
	})
}

// What an update refuses changes nothing.
func TestUpdateRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := updatable(t, 2)
		x.c.refused(&control.UpdateNodes{Nodes: []uint32{7}, Image: "new"}, control.Code_CODE_NOT_FOUND, "no node7")
		x.c.refused(&control.UpdateNodes{Nodes: []uint32{0}}, control.Code_CODE_BAD_REQUEST, `the image ""`)
		x.c.refused(&control.UpdateNodes{Nodes: []uint32{0}, Image: "new", TimeoutMs: 25 * 3600 * 1000}, control.Code_CODE_BAD_REQUEST, "the time-out 90000000 ms")
		x.holder.staged = nil
		x.c.refused(&control.UpdateNodes{Nodes: []uint32{0}, Image: "new"}, control.Code_CODE_REFUSED, "hosted")
		x.hold()
		x.played[1].refused["StartImage"] = control.Failf(control.Code_CODE_FAILED, "node image: its content is not the expected one")
		x.begin(1, 1)
		x.wants(2*time.Second, update.Failed.Word())
		if got := must[*control.Update](x.c, &control.ReadUpdate{}).Stopped; got != "node1: node image: its content is not the expected one" {
			t.Errorf("stopped: %s", got)
		}
		none[*control.RebootNode](t, &x.holder.recorder, "it is up")
	})
}

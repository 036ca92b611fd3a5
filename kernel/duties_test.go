package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"margay/kernel/hardware"
	"margay/kernel/keep"
	"margay/kernel/link"
	"margay/kernel/message"
)

// keeping is a node that leaves things with a PID 1 of the test's, and may use one CPU.
func keeping(t *testing.T, cores int) (*Node, *keep.Store) {
	t.Helper()
	n, _ := node1(t, cores)
	allowed, err := hardware.Allowed(0)
	if err != nil {
		t.Fatal(err)
	}
	own := hardware.Slots(allowed, cores, 0)
	n.cores = own
	n.info.Cores = own[1:]
	n.messages = message.NewEngine(message.Config{Log: t.Logf})
	near, far, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := link.NewConn(far)
	if err != nil {
		t.Fatal(err)
	}
	n.config.Link = near
	kept, over := new(keep.Store), make(chan struct{})
	go func() {
		defer close(over)
		for {
			m, err := conn.Recv()
			if err != nil {
				return
			}
			if mine, err := kept.Handle(m); !mine || err != nil {
				t.Error(m.Kind, err)
			}
		}
	}()
	t.Cleanup(func() {
		n.messages.Rest()
		near.Close()
		<-over
		conn.Close()
		kept.Close()
	})
	return n, kept
}

// state says what the cores of a node do.
func state(n *Node) string {
	info := n.Info()
	text := ""
	for _, c := range info.Cores {
		text += fmt.Sprint(c.ID, " ")
	}
	if info.AllCores {
		text += "all "
	}
	if info.MessageCore != nil {
		text += fmt.Sprint("message ", info.MessageCore.ID)
	}
	return strings.TrimSpace(text)
}

func TestDuties(t *testing.T) {
	n, _ := keeping(t, 2)
	for _, c := range []struct {
		Duties
		want string
	}{
		{Duties{}, "1 2"},
		{Duties{All: true}, "0 1 2 all"},
		{Duties{All: true, Message: true}, "0 1 all message 2"},
		{Duties{Message: true}, "1 message 2"},
		{Duties{}, "1 2"},
	} {
		if err := n.SetDuties(func(d *Duties) { *d = c.Duties }); err != nil || state(n) != c.want {
			t.Errorf("%+v: %v, the cores are %s, want %s", c.Duties, err, state(n), c.want)
		}
	}
}

// A core is not taken from a job, and nothing else changes then.
func TestDutiesRefused(t *testing.T) {
	n, _ := keeping(t, 2)
	set := func(all, message bool) error { return n.SetDuties(func(d *Duties) { d.All, d.Message = all, message }) }
	if err := set(true, true); err != nil {
		t.Fatal(err)
	}
	if err := n.claim(n.prepared(t, 7, 0)); err != nil {
		t.Fatal(err)
	}
	if err := n.claim(n.prepared(t, 8, 2)); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "another duty") {
		t.Errorf("the core of messages was given away: %v", err)
	}
	if err := set(false, false); !errors.Is(err, ErrBusy) || err.Error() != "core 0: core is not free: job 7 has it" {
		t.Error(err)
	}
	if got := state(n); got != "0 1 all message 2" {
		t.Errorf("after a refusal the cores are %s", got)
	}
	if err := set(true, false); err != nil { // beside the job
		t.Error(err)
	}
	if err := n.claim(n.prepared(t, 9, 2)); err != nil {
		t.Error(err)
	}
	if err := set(true, true); !errors.Is(err, ErrBusy) || err.Error() != "core 2: core is not free: job 9 has it" {
		t.Error(err)
	}
	one, _ := keeping(t, 1)
	if err := one.SetDuties(func(d *Duties) { d.Message = true }); !errors.Is(err, ErrLacks) || !strings.Contains(err.Error(), "--all on") {
		t.Errorf("a node with one core: %v", err)
	}
	if err := one.SetDuties(func(d *Duties) { *d = Duties{All: true, Message: true} }); err != nil || state(one) != "0 all message 1" {
		t.Errorf("%v, the cores are %s", err, state(one))
	}
}

// replayed returns the item that is kept, or nil if there is none.
func replayed(t *testing.T, kept *keep.Store) (item *keep.Item) {
	t.Helper()
	near, far, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	conn, err := link.NewConn(far)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := kept.Replay(conn); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := near.Recv()
		if err != nil {
			t.Fatal(err)
		}
		next, done, err := keep.Replayed(m)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return item
		}
		item = next
	}
}

// What was set outlives the node kernel.
func TestDutiesAreKept(t *testing.T) {
	n, kept := keeping(t, 2)
	if err := n.SetDuties(func(d *Duties) { d.All = true }); err != nil {
		t.Fatal(err)
	}
	if err := n.SetDuties(func(d *Duties) { d.Message = true }); err != nil {
		t.Fatal(err)
	}
	var item *keep.Item
	for deadline := time.Now().Add(10 * time.Second); item == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the duties were not kept")
		}
		var d Duties // of the first change, until the second one has come
		if item = replayed(t, kept); item != nil && (json.Unmarshal(item.Words, &d) != nil || !d.Message) {
			item = nil
		}
	}
	next, _ := keeping(t, 2)
	if err := next.adoptDuties(item); err != nil || state(next) != "0 1 all message 2" {
		t.Errorf("%v, the cores are %s", err, state(next))
	}
	item.Words = []byte("{")
	if err := next.adoptDuties(item); err == nil || state(next) != "0 1 all message 2" {
		t.Errorf("garbage: %v, the cores are %s", err, state(next))
	}
}

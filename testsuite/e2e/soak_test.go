//go:build soak

package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/qemu/ether"
)

// The examples for newcomers succeed, however often they run.
func TestSoakExamples(t *testing.T) { examples(t, 50) }

func TestSoakLatencyEndsWell(t *testing.T) { latencyEndsWell(t, 15) }

// On emulated nodes, processes have their shares of a core by the time that they get.
func TestSoakSchedulers(t *testing.T) {
	t.Run("qemu", func(t *testing.T) { up(t, "qemu", 1, 1).schedulers("priority") })
	t.Run("sched_ext", func(t *testing.T) { up(t, "qemu", 1, 1, "--profile", "sched").schedulers("sched_ext") })
}

// heldMemory returns the resources of the node kernel that has most of each.
func (m *machine) heldMemory() (most weight) {
	m.t.Helper()
	for _, kernel := range m.nodeKernels() {
		w := weigh(m.t, kernel)
		most = weight{max(most.memory, w.memory), max(most.threads, w.threads), max(most.descriptors, w.descriptors), max(most.memories, w.memories)}
	}
	return most
}

// sameMemory waits until the node kernels have the resources that they had before. Memory in KiB
// may differ, because Go keeps some.
func (m *machine) sameMemory(before weight) {
	m.t.Helper()
	m.awaitIdle()
	var now weight
	eventually(m.t, "resources as before", func() bool {
		now = m.heldMemory()
		return now.memory <= max(before.memory, collected)+8192 && now.descriptors <= before.descriptors && now.memories <= before.memories
	}, func() string { return fmt.Sprintf("before %v, now %v", before, now) })
	m.t.Logf("before %v, now %v", before, now)
}

// A round of TestLossyWire with longer storms, after which the node kernels have the memory that
// they had before.
func TestSoakLossyWire(t *testing.T) {
	inC, inGo := operationPrograms(t)
	for _, fabric := range []string{"tcp-trusted", "udp"} {
		t.Run(fabric, func(t *testing.T) {
			seed := check.Seed(t)
			m := up(t, "hosted", 4, 2, "--fabric", fabric)
			w := m.hostileWire()
			operations{m, inC, inGo, seed}.check(60, 200)
			before := m.heldMemory()
			for range 2 {
				m.storm(&w.weather, inGo, seed, 20)
			}
			m.sameMemory(before)
			m.usable()
		})
	}
}

// Operations and messages between virtual nodes survive what a bad switch does to datagrams.
func TestSoakLossyWireVirtual(t *testing.T) {
	inC, inGo := operationPrograms(t)
	for _, fabric := range []string{"tcp-trusted", "udp"} {
		t.Run(fabric, func(t *testing.T) {
			seed := check.Seed(t)
			m := up(t, "qemu", 2, 2, append([]string{"--fabric", fabric}, patient...)...)
			w := m.badCables(seed)
			operations{m, inC, inGo, seed}.check(10, 30)
			for range 2 {
				m.storm(w, inGo, seed, 20)
			}
			m.usable()
		})
	}
}

// badCables puts a cable between each virtual node and its port of the switch until the test ends.
// It carries all frames, and those with UDP in bad weather. The nodes are rebooted to be plugged
// in.
func (m *machine) badCables(seed uint64) *weather {
	m.t.Helper()
	w := &weather{random: rand.New(rand.NewPCG(seed, 1))}
	for node := range m.nodes {
		name := m.file("ports", fmt.Sprintf("node%d", node))
		if err := os.Rename(name, name+".switch"); err != nil {
			m.t.Fatal(err)
		}
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { listener.Close() })
		w.running.Go(func() {
			for {
				conn, err := listener.AcceptUnix()
				if err != nil {
					return
				}
				w.running.Go(func() { w.cable(m.t, conn, name+".switch") })
			}
		})
		if r := m.margay("node", "reboot", fmt.Sprint(node)); r.code != 0 {
			m.t.Fatal(r)
		}
	}
	m.t.Cleanup(func() { w.report(m.t) })
	m.awaitUp()
	return w
}

// cable carries frames between a virtual node and its port until one of them has ended.
func (w *weather) cable(t testing.TB, node *net.UnixConn, port string) {
	defer node.Close()
	sw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: port, Net: "unix"})
	if err != nil {
		t.Errorf("plug in a node: %v", err)
		return
	}
	defer sw.Close()
	w.running.Go(func() {
		defer node.Close()
		_, _ = io.Copy(node, sw) // the cables of other nodes have decided about it
	})
	var sending sync.Mutex
	for frames := ether.NewReader(node); ; {
		frame, err := frames.Next()
		if err != nil {
			return
		}
		prefixed := ether.Append(nil, frame)
		pass := func() {
			sending.Lock()
			defer sending.Unlock()
			_, _ = sw.Write(prefixed)
		}
		if isUDP := len(frame) > 14+9 && frame[12] == 8 && frame[13] == 0 && frame[14+9] == unix.IPPROTO_UDP; isUDP {
			w.decideFor(pass)
		} else {
			pass()
		}
	}
}

func TestSoakHostileSchedulers(t *testing.T) {
	up(t, "qemu", 1, 1, "--profile", "sched").hostileSchedulers(misbehaving(t, 7))
}

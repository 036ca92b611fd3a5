package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
)

// weather decides what happens to the datagrams on a wire: it loses, repeats, delays and so
// reorders them.
type weather struct {
	cut     atomic.Bool    // a partition: everything is lost
	running sync.WaitGroup // of what passes datagrams

	came, lost, twice, late atomic.Int64 // datagrams

	mu     sync.Mutex
	random *rand.Rand
}

// badWire is the network between the nodes of a hosted machine while a test has it. It carries all
// UDP that nodes send to each other instead of the bridge, in the network namespace of the holder,
// in bad weather. Everything else passes the bridge as before.
type badWire struct {
	weather
	t      testing.TB
	holder int
	ports  []*port
	places map[[6]byte]*port // by the address of a node's card; guarded by mu
}

// port is the holder's end of the link to a node.
type port struct {
	name string
	file *os.File // a packet socket
}

// The fate of a datagram, in percent, and the longest delay.
const (
	wireLoses   = 20
	wireRepeats = 10
	wireDelays  = 30
	wireDelay   = 3 * time.Millisecond
)

// hostileWire replaces the network of a machine until the test ends.
func (m *machine) hostileWire() *badWire {
	m.t.Helper()
	holder, _ := m.status()
	w := &badWire{t: m.t, holder: holder, places: make(map[[6]byte]*port)}
	w.random = rand.New(rand.NewPCG(check.Seed(m.t), 1))
	opened := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends in the other namespace
		opened <- w.open()
	}()
	if err := <-opened; err != nil {
		m.t.Fatal(err)
	}
	var rules strings.Builder
	for _, p := range w.ports {
		fmt.Fprintf(&rules, "chain %s { type filter hook ingress device %q priority 0\n ip protocol udp drop\n }\n", p.name, p.name)
	}
	w.nft("table netdev hostile {\n" + rules.String() + "}\n")
	for _, p := range w.ports {
		w.running.Go(func() { w.carry(p) })
	}
	m.t.Cleanup(w.close)
	return w
}

// open opens a packet socket on each port. The calling thread changes its network namespace.
func (w *badWire) open() error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", w.holder))
	if err != nil {
		return err
	}
	defer namespace.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the namespace of the holder: %w", err)
	}
	cards, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, card := range cards {
		if !strings.HasPrefix(card.Name, "node") {
			continue
		}
		file, err := openPort(card.Index)
		if err != nil {
			return fmt.Errorf("%s: %w", card.Name, err)
		}
		w.ports = append(w.ports, &port{card.Name, file})
	}
	return nil
}

// vnetHeader is the size of the header before each frame, which says how a train of datagrams is to
// be cut (struct virtio_net_hdr).
const vnetHeader = 10

// openPort opens a packet socket that receives the UDP that comes in at a card. It gets packets
// before the rules at the card's ingress do.
func openPort(card int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "port")
	const direction = 1<<32 - 0x1000 + 4 // SKF_AD_OFF + SKF_AD_PKTTYPE
	load := func(size uint16, at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: at}
	}
	equal := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: yes, Jf: no}
	}
	filter := []unix.SockFilter{
		load(unix.BPF_W, direction), equal(unix.PACKET_OUTGOING, 4, 0),
		load(unix.BPF_H, 12), equal(unix.ETH_P_IP, 0, 2),
		load(unix.BPF_B, 14+9), equal(unix.IPPROTO_UDP, 1, 0),
		{Code: unix.BPF_RET | unix.BPF_K}, {Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20},
	}
	for _, set := range []func() error{
		func() error {
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
		},
		func() error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) },
		func() error {
			return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00, Ifindex: card})
		},
	} {
		if err := set(); err != nil {
			file.Close()
			return nil, err
		}
	}
	return file, nil
}

// nft runs nft in the namespace of the holder.
func (w *badWire) nft(rules string) {
	w.t.Helper()
	nft := exec.Command("nsenter", "-t", fmt.Sprint(w.holder), "-n", "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		w.t.Errorf("%v\n%s", err, out)
	}
}

// close gives the network back to the bridge.
func (w *badWire) close() {
	w.nft("table netdev hostile\ndelete table netdev hostile\n")
	for _, p := range w.ports {
		p.file.Close()
	}
	w.running.Wait()
	w.report(w.t)
}

// carry takes the frames that come from a node.
func (w *badWire) carry(p *port) {
	b := make([]byte, vnetHeader+128<<10)
	for {
		n, err := p.file.Read(b)
		if err != nil {
			return
		}
		if n < vnetHeader+14+20+8 {
			continue
		}
		for _, frame := range cutTrain(b[:vnetHeader], b[vnetHeader:n]) {
			w.decide(p, frame)
		}
	}
}

// cutTrain returns the frames of a train of datagrams, each with an empty header before it. They
// have no checksum in UDP, since Linux computes it only when a packet leaves the host.
func cutTrain(header, frame []byte) (frames [][]byte) {
	at := 14 + int(frame[14]&15)*4
	if len(frame) < at+8 {
		return nil
	}
	payload := frame[at+8:]
	size := max(1, len(payload))
	if header[1]&0x7f == unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
		size = max(1, int(binary.NativeEndian.Uint16(header[4:])))
	}
	for first := true; first || len(payload) > 0; first = false {
		part := payload[:min(size, len(payload))]
		payload = payload[len(part):]
		b := append(make([]byte, vnetHeader, vnetHeader+at+8+len(part)), frame[:at+8]...)
		ip, udp := b[vnetHeader+14:vnetHeader+at], b[vnetHeader+at:]
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+8+len(part)))
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		binary.BigEndian.PutUint16(udp[4:], uint16(8+len(part)))
		binary.BigEndian.PutUint16(udp[6:], 0)
		frames = append(frames, append(b, part...))
	}
	return frames
}

// checksum returns the checksum of a header of IPv4 (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// decide decides the fate of a frame. One to an address that is not known yet goes to all other
// nodes, as on a bridge.
func (w *badWire) decide(from *port, frame []byte) {
	target, source := [6]byte(frame[vnetHeader:]), [6]byte(frame[vnetHeader+6:])
	w.mu.Lock()
	w.places[source] = from
	to := w.ports
	if p := w.places[target]; p != nil {
		to = []*port{p}
	}
	w.mu.Unlock()
	w.decideFor(func() { pass(from, to, frame) })
}

// decideFor decides the fate of a datagram, which the function passes: not at all, now, or soon.
// One that is repeated has two fates.
func (w *weather) decideFor(pass func()) {
	w.came.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	copies := 1
	if w.random.IntN(100) < wireRepeats {
		copies = 2
		w.twice.Add(1)
	}
	for range copies {
		switch p := w.random.IntN(100); {
		case w.cut.Load() || p < wireLoses:
			w.lost.Add(1)
		case p < wireLoses+wireDelays:
			w.late.Add(1)
			w.running.Add(1)
			time.AfterFunc(time.Duration(w.random.Int64N(int64(wireDelay))), func() {
				defer w.running.Done()
				pass()
			})
		default:
			pass()
		}
	}
}

func (w *weather) report(t testing.TB) {
	t.Logf("of %d datagrams, %d were lost, %d repeated, %d delayed", w.came.Load(), w.lost.Load(), w.twice.Load(), w.late.Load())
}

// pass sends a frame to nodes. Without room it is lost.
func pass(from *port, to []*port, frame []byte) {
	for _, p := range to {
		if p != from {
			_, _ = p.file.Write(frame)
		}
	}
}

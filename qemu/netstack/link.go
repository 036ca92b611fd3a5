package netstack

import (
	"encoding/binary"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"margay/qemu/ether"
)

// writeSize is about how much is written to the link at once, bytes.
const writeSize = 256 << 10

// A link is the lower half of the stack's Ethernet interface: gVisor's packets, with their Ethernet
// header in place, on a stream connection. The stack's FIFO calls WritePackets from one goroutine.
type link struct {
	conn net.Conn
	mac  tcpip.LinkAddress
	mtu  uint32
	lose func(error) // called when the connection fails

	mu  sync.RWMutex
	up  stack.NetworkDispatcher // nil: not attached to a stack
	buf []byte                  // of WritePackets
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

func newLink(conn net.Conn, cfg Config, lose func(error)) *link {
	return &link{
		conn: conn,
		mac:  tcpip.LinkAddress(cfg.MAC[:]),
		mtu:  uint32(cfg.MTU) + ether.HeaderLen, // the Ethernet layer above subtracts its header
		lose: lose,
	}
}

// inject passes a frame from the connection to the stack.
func (l *link) inject(frame []byte) {
	l.mu.RLock()
	up := l.up
	l.mu.RUnlock()
	if up == nil {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	up.DeliverNetworkPacket(0, pkt) // the protocol is in the Ethernet header
	pkt.DecRef()
}

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	buf := l.buf[:0]
	for _, pkt := range pkts.AsSlice() {
		buf = binary.BigEndian.AppendUint32(buf, uint32(pkt.Size()))
		for _, piece := range pkt.AsSlices() {
			buf = append(buf, piece...)
		}
		if len(buf) >= writeSize {
			if !l.write(buf) {
				return 0, &tcpip.ErrClosedForSend{}
			}
			buf = buf[:0]
		}
	}
	l.buf = buf
	if !l.write(buf) {
		return 0, &tcpip.ErrClosedForSend{}
	}
	return pkts.Len(), nil
}

func (l *link) write(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	_, err := l.conn.Write(b)
	if err != nil {
		l.lose(err)
	}
	return err == nil
}

// Attach implements stack.LinkEndpoint.
func (l *link) Attach(up stack.NetworkDispatcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
}

// IsAttached implements stack.LinkEndpoint.
func (l *link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.up != nil
}

// Capabilities implements stack.LinkEndpoint. Received checksums need no check: the frames came
// through memory.
func (*link) Capabilities() stack.LinkEndpointCapabilities { return stack.CapabilityRXChecksumOffload }

// SupportedGSO implements stack.GSOEndpoint: TCP handles large segments and cuts them just before
// WritePackets.
func (*link) SupportedGSO() stack.SupportedGSO { return stack.GVisorGSOSupported }

// GSOMaxSize implements stack.GSOEndpoint.
func (*link) GSOMaxSize() uint32 { return stack.GVisorGSOMaxSize }

// MTU implements stack.LinkEndpoint.
func (l *link) MTU() uint32 { return l.mtu }

// LinkAddress implements stack.LinkEndpoint.
func (l *link) LinkAddress() tcpip.LinkAddress { return l.mac }

// ARPHardwareType implements stack.LinkEndpoint.
func (*link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// The rest of stack.LinkEndpoint: MTU and address are fixed, the Ethernet layer above makes and
// reads the headers, and the connection is closed by the Stack.
func (*link) SetMTU(uint32)                        {}
func (*link) SetLinkAddress(tcpip.LinkAddress)     {}
func (*link) MaxHeaderLength() uint16              { return 0 }
func (*link) AddHeader(*stack.PacketBuffer)        {}
func (*link) ParseHeader(*stack.PacketBuffer) bool { return true }
func (*link) Wait()                                {}
func (*link) Close()                               {}
func (*link) SetOnCloseAction(func())              {}

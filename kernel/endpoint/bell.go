package endpoint

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/kernel/untrusted"
)

// bell is a pair of connected sockets by which this side wakes or interrupts the rank.
type bell struct {
	near *os.File
	raw  syscall.RawConn // of near
	far  *os.File        // the rank's end, to be handed over
}

// ring sends the rank a byte. It does nothing if the socket is full, because the rank then has
// enough bytes to read, if no process has the other end, or if this end is being closed: its number
// may soon be another descriptor's.
func (b *bell) ring() {
	_ = b.raw.Control(func(fd uintptr) {
		_ = unix.Send(int(fd), []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// rouse rings when no message may have come.
func (e *Endpoint) rouse(b *bell) {
	b.ring()
	e.config.Owner.Woken(e.rank)
}

// Rouse rings the doorbell, for room in the send ring.
func (e *Endpoint) Rouse() { e.rouse(&e.doorbell) }

// RouseSleeper rings the doorbell of a rank that sleeps: something changed that it may wait for.
func (e *Endpoint) RouseSleeper() {
	if e.sleeps() {
		e.rouse(&e.doorbell)
	}
}

// RouseAll rings the doorbell and the upcall doorbell: the previous node kernel may have been
// killed before it rang them.
func (e *Endpoint) RouseAll() {
	e.rouse(&e.doorbell)
	e.rouse(&e.upcallBell)
}

// Listen calls rung each time that the rank rings, until Shut.
func (e *Endpoint) Listen(rung func()) {
	data, control := make([]byte, 256), make([]byte, untrusted.ControlSpace())
	for {
		files, err := untrusted.Receive(e.doorbell.raw, data, control)
		if err != nil {
			return
		}
		untrusted.Close(files)
		rung()
	}
}

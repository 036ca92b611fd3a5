package margay

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/wire"
)

// fetchAll fetches the channels to and from other ranks that the node kernel has made since. It
// reports whether there is none left. The caller holds Job.handling.
func (j *Job) fetchAll() bool {
	for {
		index, missing := j.in.Missing()
		if !missing {
			return true
		}
		if err := j.fetch(index); err != nil {
			return false // the node kernel is gone, which the next call that sleeps reports
		}
		j.in.Fetched()
	}
}

func (j *Job) fetch(index uint32) error {
	reply, files, err := j.ask(wire.Request{Op: wire.OpChannel, Value: uint64(index)}, nil)
	if err != nil {
		return err
	}
	defer rights.Close(files)
	if len(files) != 2 {
		return fmt.Errorf("the node kernel sent %d descriptors", len(files))
	}
	memory, err := mapFile(files[0])
	if err != nil {
		return err
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	if m, ok := wire.MirrorOf(reply.Values); ok {
		return j.openMirror(m, memory, files[1])
	}
	rank, local := reply.Values[0], reply.Values[2]
	if rank >= uint64(j.Size()) || local >= uint64(j.LocalSize()) {
		return fmt.Errorf("the node kernel sent a channel for rank %d, local rank %d", rank, local)
	}
	c, err := wire.OpenChannel(memory)
	if err != nil {
		return err
	}
	if reply.Values[1] == 1 {
		j.out.Open(c, int(rank), int(local))
	} else {
		j.in.Open(c, uint32(rank), int(local))
	}
	return j.setPeerDoorbell(int(local), files[1])
}

// setPeerDoorbell remembers the peer doorbell of a local rank. The caller holds Job.sending.
func (j *Job) setPeerDoorbell(local int, f *os.File) (err error) {
	if j.peerDoorbells[local] < 0 {
		j.peerDoorbells[local], err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	return err
}

// one is what rings a peer doorbell: a number of 8 bytes.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// wake wakes the node kernel or a local rank that sleeps. The caller holds Job.sending.
func (j *Job) wake(whom int) {
	if whom == wire.WakeKernel {
		j.ring()
		return
	}
	if j.peerDoorbells[whom] < 0 && j.fetchPeerDoorbell(whom) != nil {
		return // the node kernel is gone
	}
	// It fails when the doorbell was rung often enough.
	_, _ = unix.Write(j.peerDoorbells[whom], one)
}

// fetchPeerDoorbell fetches the peer doorbell of a local rank to which there is no channel. The
// caller holds Job.sending.
func (j *Job) fetchPeerDoorbell(local int) error {
	_, files, err := j.ask(wire.Request{Op: wire.OpDoorbell, Value: uint64(local)}, nil)
	if err != nil {
		return err
	}
	defer rights.Close(files)
	if len(files) != 1 {
		return fmt.Errorf("the node kernel sent %d descriptors", len(files))
	}
	return j.setPeerDoorbell(local, files[0])
}

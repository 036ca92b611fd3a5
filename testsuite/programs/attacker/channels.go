package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/wire"
	"margay/lib/margay"
)

// attackChannels lets rank 0 write nonsense, with counters of the largest values, into everything
// that it shares with rank 1 of its job and node, and ring its doorbell without end. In the
// meantime rank 1 waits for messages.
func attackChannels([]string) error {
	a, err := newAttacker()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	came := 0
	a.job.Handle(1, func(margay.Message) { came++ })
	if err := a.job.Barrier(ctx); err != nil {
		return err
	}
	if a.job.Rank() == 1 {
		if err := a.job.Send(ctx, 0, 1, [2]uint64{}, nil); err != nil {
			return err
		}
		return a.job.WaitFor(ctx, func() bool { return false })
	}
	if err := a.job.Send(ctx, 1, 1, [2]uint64{}, nil); err != nil {
		return err
	}
	if err := a.job.WaitFor(ctx, func() bool { return came == 1 }); err != nil {
		return err
	}
	bell, err := a.damage()
	if err != nil {
		return err
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	for ctx.Err() == nil {
		_, _ = unix.Write(bell, one)
	}
	return fmt.Errorf("rank 1 goes on")
}

// damage writes over the channels and the board, and returns rank 1's doorbell.
func (a *attacker) damage() (bell int, err error) {
	_, files, err := a.ask(encoded(wire.Request{Op: wire.OpDoorbell, Value: 1}))
	if err != nil {
		return 0, err
	}
	bell = int(files[0].Fd())
	if err := unix.SetNonblock(bell, false); err != nil { // it is rank 1's and the node kernel's, too
		return 0, err
	}
	full := binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1)
	for index := uint64(0); ; index++ {
		reply, files, err := a.ask(encoded(wire.Request{Op: wire.OpChannel, Value: index}))
		if err != nil {
			break // that was the last one
		}
		if err := overwrite(files[0], wire.ChannelSize, 0xff); err != nil {
			return 0, err
		}
		if reply.Values[1] == 1 {
			_, _ = unix.Write(bell, full)
		}
	}
	_, files, err = a.ask(encoded(wire.Request{Op: wire.OpHello, Value: wire.Version}))
	if err != nil {
		return 0, err
	}
	return bell, overwrite(files[3], wire.BoardSize(a.job.LocalSize()), 0xfc)
}

// overwrite fills shared memory with a byte.
func overwrite(f *os.File, size int, b byte) error {
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for i := range mem {
		mem[i] = b
	}
	return unix.Munmap(mem)
}

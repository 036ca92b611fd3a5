package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"margay/cluster/boot"
	"margay/kernel/abi/id"
	"margay/qemu"
	"margay/qemu/netstack"
)

// bootServices are what virtual nodes boot from: a station on the machine's switch, in the holder.
type bootServices struct {
	services *boot.Services
	stack    *netstack.Stack
	files    []*os.File // open while the machine is up: the cache may drop them
	cancel   context.CancelFunc
	served   sync.WaitGroup
}

// bootMTU is the MTU of the boot programs of network cards.
const bootMTU = netstack.DefaultMTU

// bootBuffer bounds the part of a file that a connection buffers, in bytes. Buffered data counts as
// fetched before the node has it. The bound also keeps many connections small.
const bootBuffer = 256 << 10

// startBoot plugs the services into the switch, which runs.
func startBoot(s Spec, d Dir, events virtualEvents) (b *bootServices, err error) {
	b = new(bootServices)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("boot services: %w", err), b.close())
		}
	}()
	kernel, err := b.open(s.Kernel)
	if err != nil {
		return nil, err
	}
	image, err := b.open(s.Image)
	if err != nil {
		return nil, err
	}
	b.services, err = boot.New(boot.Config{
		Server: bootAddress, Cmdline: qemu.CommandLine(qemu.Accel(s.Accel), s.Cmdline), Kernel: kernel, Image: image,
		Report: events.stage, MAC: boot.MAC(bootMAC), Send: func(frame []byte) error { return b.stack.Send(frame) }, Log: events.log,
	})
	if err != nil {
		return nil, err
	}
	link, err := net.Dial("unix", d.Port(bootPort))
	if err != nil {
		return nil, err
	}
	b.stack, err = netstack.New(link, netstack.Config{
		MAC: bootMAC, Address: bootAddress, MTU: bootMTU, SendBuffer: bootBuffer, Reset: true,
	})
	if err != nil {
		return nil, err
	}
	return b, b.serve(events)
}

func (b *bootServices) serve(events virtualEvents) error {
	packets, err := b.stack.ListenPacket(boot.DHCPPort)
	if err != nil {
		return err
	}
	l, err := b.stack.Listen(boot.HTTPPort)
	if err != nil {
		return errors.Join(err, packets.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.served.Go(func() {
		if err := b.services.Serve(ctx, packets, l); err != nil {
			events.log("%v; no node can boot any more", err)
		}
	})
	return nil
}

// add makes the services know a node.
func (b *bootServices) add(node id.Node) error {
	address := nodeAddress(node).Addr()
	if err := b.services.Add(boot.Host{Node: node, MAC: boot.MAC(nodeMAC(node)), Address: address}); err != nil {
		return err
	}
	// The node cannot answer ARP while it has no address.
	return b.stack.AddNeighbor(address, nodeMAC(node))
}

func (b *bootServices) open(path string) (boot.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return boot.File{}, err
	}
	b.files = append(b.files, f)
	info, err := f.Stat()
	if err != nil {
		return boot.File{}, err
	}
	return boot.File{ReaderAt: f, Size: info.Size()}, nil
}

// close ends the services.
func (b *bootServices) close() error {
	var errs []error
	if b.cancel != nil {
		b.cancel()
		b.served.Wait()
	}
	if b.stack != nil {
		errs = append(errs, b.stack.Close())
	}
	for _, f := range b.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

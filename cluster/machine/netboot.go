package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"margay/cluster/boot"
	"margay/cluster/provision"
	"margay/cluster/provision/firmware"
	"margay/kernel/abi/id"
	"margay/qemu"
	"margay/qemu/netstack"
)

// bootServices are what nodes boot from, in the holder. For virtual nodes they are a station on the
// machine's switch.
type bootServices struct {
	services *boot.Services
	stack    *netstack.Stack // of that station; nil: the sockets are the host's
	files    []*os.File      // open while the machine is up: the cache may drop them
	cancel   context.CancelFunc
	served   sync.WaitGroup
}

// bootMTU is the MTU of the boot programs of network cards.
const bootMTU = netstack.DefaultMTU

// prepareNetboot finds what nodes that boot from their network card need, and enters the paths in
// the spec.
func prepareNetboot(ctx context.Context, e *qemu.Emulator, o *UpOptions) error {
	switch {
	case !o.Spec.fromNetwork():
		return nil
	case !o.Spec.byUEFI():
		return e.CheckNetBoot(ctx)
	}
	files, err := provision.FindFirmware(ctx, firmware.Options{Progress: o.Progress})
	if err != nil {
		return fmt.Errorf("%w; --boot %s and --boot %s do without", err, BootKernel, BootBIOS)
	}
	o.Spec.UEFI, o.Spec.IPXEBIOS, o.Spec.IPXEUEFI = files.UEFI, files.IPXEBIOS, files.IPXEUEFI
	return nil
}

// startBoot plugs the services into the switch, which runs.
func startBoot(s Spec, d Dir, nodes *images, events virtualEvents) (b *bootServices, err error) {
	b = new(bootServices)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("boot services: %w", err), b.close())
		}
	}()
	config := boot.Config{
		Server: bootAddress, Cmdline: s.passed(s.Cmdline), Own: nodes.own,
		Report: events.stage, MAC: boot.MAC(bootMAC), Send: func(frame []byte) error { return b.stack.Send(frame) }, Log: events.log,
	}
	if err := b.openFiles(s, &config); err != nil {
		return nil, err
	}
	b.services, err = boot.New(config)
	if err != nil {
		return nil, err
	}
	link, err := net.Dial("unix", d.Port(bootPort))
	if err != nil {
		return nil, err
	}
	b.stack, err = netstack.New(link, netstack.Config{
		MAC: bootMAC, Address: bootAddress, MTU: bootMTU, SendBuffer: boot.SendBuffer, Reset: true,
	})
	if err != nil {
		return nil, err
	}
	return b, b.serve(events)
}

func (b *bootServices) serve(events virtualEvents) error {
	questions, err := b.stack.ListenPacket(boot.DHCPPort)
	if err != nil {
		return err
	}
	first, err := b.stack.ListenPacket(boot.TFTPPort)
	if err != nil {
		return errors.Join(err, questions.Close())
	}
	l, err := b.stack.Listen(boot.HTTPPort)
	if err != nil {
		return errors.Join(err, questions.Close(), first.Close())
	}
	b.run(boot.Sockets{DHCP: questions, TFTP: first, HTTP: l}, events.log)
	return nil
}

// run serves on sockets until close.
func (b *bootServices) run(sockets boot.Sockets, log func(format string, args ...any)) {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.served.Go(func() {
		if err := b.services.Serve(ctx, sockets); err != nil {
			log("%v; no node can boot any more", err)
		}
	})
}

// openFiles opens what nodes boot.
func (b *bootServices) openFiles(s Spec, config *boot.Config) (err error) {
	for _, f := range []struct {
		path string
		file *boot.File
	}{{s.Kernel, &config.Kernel}, {s.Image, &config.Image}, {s.IPXEBIOS, &config.BIOS}, {s.IPXEUEFI, &config.UEFI}} {
		if f.path == "" {
			continue // these nodes boot without it
		}
		if *f.file, err = b.open(f.path); err != nil {
			return err
		}
	}
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

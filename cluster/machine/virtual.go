package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"

	"margay/cluster/boot"
	"margay/cluster/provision"
	"margay/cluster/provision/emulator"
	"margay/cluster/trust"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/qemu"
	"margay/qemu/console"
	"margay/qemu/vswitch"
)

// The ways to choose an accelerator. Any other value is an accelerator's name.
const (
	AccelAuto = "auto" // KVM if it works, else emulation
)

// The names of the switch ports that serve and the boot services are plugged into.
const (
	servicePort = "service"
	bootPort    = "boot"
)

// imageName is the name of the machine's own copy of the node image, because the cache may drop the
// image at any time.
const imageName = "image"

// virtual runs each node in a virtual machine. The nodes' network cards, and serve's stack, are
// plugged into a switch in the holder. So are the boot services, which therefore outlive serve.
type virtual struct {
	spec     Spec
	dir      Dir
	cert     []byte
	emulator *qemu.Emulator
	fabric   *vswitch.Switch
	boot     *bootServices // nil: QEMU loads kernel and image
	images   *images

	mu  sync.Mutex
	vms map[id.Node]*qemu.VM
}

// prepareVirtual finds the files that virtual nodes need, and enters their paths in the spec.
func prepareVirtual(ctx context.Context, d Dir, o *UpOptions) error {
	found, err := provision.FindEmulator(ctx, emulator.Options{
		Arch: qemu.Arch(runtime.GOARCH), Program: o.Spec.QEMU, Told: o.Told, Progress: o.Progress,
	})
	if err != nil {
		return err
	}
	o.Spec.QEMU, o.Spec.Firmware = found.Path(), found.Firmware()
	if err := prepareNetboot(ctx, found, o); err != nil {
		return err
	}
	image, err := provision.BuildImage(ctx, provision.ImageOptions{
		Program: o.Spec.Program, JobInit: o.Spec.JobInit, Kernel: o.Spec.Kernel, Plain: o.Spec.fromFiles(), Told: o.Progress,
	})
	if err != nil {
		return err
	}
	if err := o.Spec.checkItems(image); err != nil {
		return err
	}
	if err := chooseAccel(ctx, found, image, o); err != nil {
		return err
	}
	emulated := o.Spec.Accel == string(qemu.TCG)
	if o.Spec.Profile == "" {
		o.Spec.Profile = node.Isolated
		if emulated {
			o.Spec.Profile = node.Ticking
		}
	}
	if err := useImage(d, o, image, fmt.Sprintf(", QEMU %v", found.Version())); err != nil || !emulated || o.Spec.Boot != BootKernel {
		return err
	}
	o.Spec.Direct, err = provision.DirectKernel(image.Kernel)
	return err
}

// useImage copies a node image into the folder of the machine, and enters it in the spec, with its
// kernel and command line. The line about it ends with more.
func useImage(d Dir, o *UpOptions, image provision.Image, more string) (err error) {
	form := ""
	if image.Manifest.Compressed == image.Manifest.Uncompressed {
		form = " unpacked"
	}
	o.Told("node image %.1f MB%s, Linux %s (%s)%s", float64(image.Manifest.Compressed)/1e6, form, image.Kernel.Version, image.Kernel.Source, more)
	o.Spec.Lacks = lacksOf(image.Kernel)
	for _, what := range o.Spec.Lacks {
		o.Told("this kernel lacks %s", what)
	}
	if o.Spec.KernelOf, err = kernelOf(o.Spec.Kernel); err != nil {
		return err
	}
	o.Spec.Kernel, o.Spec.Image = image.Kernel.Image, d.file(imageName)
	if o.Spec.Cmdline, err = o.Spec.cmdline(image.Kernel); err != nil {
		return err
	}
	return initramfs.WriteNodeImage(image.Path, nil, o.Spec.Image)
}

// lacksOf describes what a kernel lacks.
func lacksOf(k guestkernel.Kernel) (all []string) {
	for _, lack := range k.Lacks {
		all = append(all, lack+": "+guestkernel.Describe(lack))
	}
	return all
}

// chooseAccel tests KVM where it is wanted: the existence of /dev/kvm proves nothing.
func chooseAccel(ctx context.Context, e *qemu.Emulator, image provision.Image, o *UpOptions) error {
	if o.Spec.Accel != AccelAuto && o.Spec.Accel != string(qemu.KVM) {
		return nil
	}
	o.Told("booting a node image to see whether KVM works")
	cmdline, err := initramfs.Cmdline(image.Kernel, initramfs.Isolated, 1)
	if err != nil {
		return err
	}
	err = e.ProbeKVM(ctx, qemu.Config{
		Name: "probe", Kernel: image.Kernel.Image, Initrd: image.Path, Cmdline: cmdline, MemoryMiB: o.Spec.MemoryMiB,
	}, "margay: ")
	switch {
	case err == nil:
		o.Spec.Accel = string(qemu.KVM)
	case o.Spec.Accel == AccelAuto:
		o.Told("%v; nodes are emulated", err)
		o.Spec.Accel = string(qemu.TCG)
	}
	if o.Spec.Accel == string(qemu.KVM) {
		return err
	}
	return nil
}

// virtualEvents are the callbacks of a virtual substrate.
type virtualEvents struct {
	stage func(id.Node, boot.Status) // when the boot of a node over the network has got to a stage
	log   func(format string, args ...any)
}

func newVirtual(s Spec, d Dir, a *trust.Authority, events virtualEvents) (*virtual, error) {
	found, err := qemu.Find(context.Background(), qemu.Arch(runtime.GOARCH), s.QEMU, s.Firmware...)
	if err != nil {
		return nil, err
	}
	config := vswitch.Config{
		Ports: []vswitch.PortConfig{{Name: servicePort, MAC: serveMAC, Address: serveAddress.Addr(), Socket: d.Port(servicePort)}},
		Log:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if s.fromNetwork() {
		// Without an address the switch lets it answer DHCP clients.
		config.Ports = append(config.Ports, vswitch.PortConfig{Name: bootPort, MAC: bootMAC, Socket: d.Port(bootPort)})
	}
	fabric, err := vswitch.New(config)
	if err != nil {
		return nil, err
	}
	v := &virtual{spec: s, dir: d, cert: a.Certificate(), emulator: found, fabric: fabric, vms: make(map[id.Node]*qemu.VM), images: &images{dir: d, spec: s}}
	if s.fromNetwork() {
		if v.boot, err = startBoot(s, d, v.images, events); err != nil {
			return nil, errors.Join(err, fabric.Close())
		}
	}
	return v, nil
}

func nodeName(node id.Node) string { return fmt.Sprintf("node%d", node) }

// start implements substrate.
func (v *virtual) start(number id.Node, term uint32) (int, <-chan exit, error) {
	if err := v.plugIn(number); err != nil {
		return 0, nil, err
	}
	config := qemu.Config{
		Name: v.spec.Name + "-" + nodeName(number), Accel: qemu.Accel(v.spec.Accel),
		MemoryMiB: v.spec.MemoryMiB, CPUs: v.spec.Cores + 1,
		NIC:     qemu.NIC{Socket: v.dir.Port(nodeName(number)), MAC: nodeMAC(number), MTU: v.spec.MTU},
		Console: console.Config{Path: v.dir.ConsoleLog(number)},
		Stderr:  console.Config{Path: v.dir.file("log", nodeName(number)+".qemu")},
	}
	boot := v.bootFromFiles
	if v.boot != nil {
		boot = v.bootFromNetwork
	}
	if err := boot(number, term, &config); err != nil {
		return 0, nil, err
	}
	vm, err := v.emulator.Start(context.Background(), config)
	if err != nil {
		return 0, nil, err
	}
	v.mu.Lock()
	v.vms[number] = vm
	v.mu.Unlock()
	ended := make(chan exit, 1)
	go func() {
		<-vm.Done()
		ended <- exit{Reason: vm.Exit().Error(), Console: vm.Console().Tail(consoleLines)}
	}()
	return vm.PID(), ended, nil
}

// plugIn gives a node a port of the switch, and makes the boot services know it, unless that was
// done before.
func (v *virtual) plugIn(number id.Node) error {
	name := nodeName(number)
	if v.fabric.Port(name) != nil {
		return nil
	}
	if v.boot != nil {
		if err := v.boot.add(number); err != nil {
			return err
		}
	}
	_, err := v.fabric.Add(vswitch.PortConfig{Name: name, MAC: nodeMAC(number), Address: nodeAddress(number).Addr(), Socket: v.dir.Port(name)})
	if err != nil && v.boot != nil {
		v.boot.services.Remove(number)
	}
	return err
}

// remove implements substrate.
func (v *virtual) remove(number id.Node) {
	if v.boot != nil {
		v.boot.services.Remove(number)
	}
	v.mu.Lock()
	delete(v.vms, number)
	v.mu.Unlock()
	if err := errors.Join(v.fabric.Remove(nodeName(number)), v.forget(number)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// forget removes the files of a node that has left, and the record of the image that it boots.
func (v *virtual) forget(number id.Node) error {
	_, err := v.images.forget(number)
	return errors.Join(err, removeFiles(v.dir.nodeImage(number), v.dir.nodeFile(number)))
}

// boots returns the image that a node boots. An attempt to give it another one ends with this boot.
func (v *virtual) boots(number id.Node) (bootImage, error) {
	b, err := v.images.of(number)
	return b, errors.Join(err, removeFiles(v.dir.stagedImage(number)))
}

// bootFromFiles makes QEMU load the kernel, and an image with the configuration of a node.
func (v *virtual) bootFromFiles(number id.Node, term uint32, config *qemu.Config) error {
	b, err := v.boots(number)
	if err != nil {
		return err
	}
	config.Kernel, config.Initrd, config.Cmdline = b.start(), v.dir.nodeImage(number), b.Cmdline
	return b.write(v.spec.bootConfig(number, term, v.cert), config.Initrd)
}

// bootFromNetwork makes a node fetch kernel and image. It reads its configuration, which has
// secrets, from QEMU.
func (v *virtual) bootFromNetwork(number id.Node, term uint32, config *qemu.Config) error {
	b, err := v.boots(number)
	if err != nil {
		return err
	}
	c := v.spec.bootConfig(number, term, v.cert)
	c.Lacks = b.Lacks
	text, err := c.Encode()
	if err != nil {
		return err
	}
	v.boot.services.Starting(number)
	path := v.dir.nodeFile(number)
	config.NetBoot, config.UEFI, config.HTTPBoot = true, v.spec.UEFI, v.spec.Boot == BootHTTP
	config.Items = map[string]string{node.Item: path}
	return writeFile(path, text)
}

// stop implements substrate.
func (v *virtual) stop(node id.Node) (failed <-chan error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if vm := v.vms[node]; vm != nil {
		if err := vm.Kill(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return nil
}

// close implements substrate.
func (v *virtual) close() error {
	var errs []error
	v.mu.Lock()
	for _, vm := range v.vms {
		errs = append(errs, vm.Kill())
	}
	v.mu.Unlock()
	if v.boot != nil {
		errs = append(errs, v.boot.close())
	}
	return errors.Join(append(errs, v.fabric.Close())...)
}

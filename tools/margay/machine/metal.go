package machine

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/cluster/metal"
	"margay/cluster/provision"
	"margay/internal/nodeset"
	"margay/kernel/abi/node"
	"margay/tools/margay/command"
)

// metalFlags are the flags of machine up about nodes that boot over a network of this host.
type metalFlags struct {
	wire, addresses, file, words string
	all, proxy                   bool
	firmware                     []string // folders with firmware files
}

func (w *metalFlags) define(f *pflag.FlagSet) {
	f.StringVar(&w.wire, "interface", "", "the interface of this host to the network that metal nodes boot from")
	f.StringVar(&w.addresses, "range", "", "addresses of this network for metal nodes, such as 10.8.0.0/24 (default: the subnet of the interface)")
	f.StringVar(&w.file, "file", "", "the machine file: which machines are metal nodes, and how their power is switched")
	f.BoolVar(&w.all, "approve-all", false, "make every machine that boots from the network a metal node, without margay node approve")
	f.BoolVar(&w.proxy, "proxy-dhcp", false, "leave the addresses of booting machines to the DHCP server of the site; --range has none of its addresses")
	f.StringVar(&w.words, "kernel-args", "", "further words for the command line of the kernel of metal nodes")
	command.CardFirmwareFlag(f, &w.firmware, provision.Nonfree, "for metal nodes")
}

// names are the names of the flags.
var metalNames = []string{"interface", "range", "file", "approve-all", "proxy-dhcp", "kernel-args", command.CardFirmware}

// apply completes the spec of a machine of metal nodes. On other substrates the flags are errors.
func (w *metalFlags) apply(c *cobra.Command, spec *machine.Spec) (err error) {
	if spec.Substrate != node.Metal {
		return command.Without(c, "is for --substrate "+node.Metal, metalNames...)
	}
	if err := command.Given(c, metalNames...); err != nil {
		return err
	}
	if err := command.Without(c, "is for virtual nodes", "boot", "accel", "qemu"); err != nil {
		return err
	}
	if err := command.Without(c, "has no meaning here: the machine file and margay node approve say which nodes there are", "nodes"); err != nil {
		return err
	}
	if err := command.Without(c, "has no meaning here: a node has the cores and the memory of its machine", "memory"); err != nil {
		return err
	}
	if !spec.AllCores {
		if err := command.Without(c, "is all or nothing here: a node has the cores of its machine", "cores"); err != nil {
			return err
		}
	}
	if strings.Contains(w.words, node.TokenWord+"=") {
		return fmt.Errorf("%s: --kernel-args has the word %s, which every station on the boot network can read: put the token on a disk (margay image build --token)", command.Called(c), node.TokenWord)
	}
	spec.Nodes, spec.Cores = 0, 0
	spec.Metal = machine.MetalSpec{Interface: w.wire, ApproveAll: w.all, Proxy: w.proxy}
	spec.KernelWords, spec.CardFirmware = w.words, w.firmware
	if w.addresses != "" {
		if spec.Metal.Range, err = netip.ParsePrefix(w.addresses); err != nil {
			return fmt.Errorf("%s: --range %q is not a range of addresses such as 10.8.0.0/24", command.Called(c), w.addresses)
		}
		spec.Metal.Range = spec.Metal.Range.Masked()
	}
	if w.file != "" {
		spec.Metal.File, err = filepath.Abs(w.file)
	}
	return err
}

// waits reports whether a machine with a network card waits for approval.
func waits(g *control.Guests, mac string) bool {
	known, err := metal.ParseMAC(mac)
	return err == nil && slices.ContainsFunc(g.GetGuests(), func(guest *control.Guest) bool { return guest.Mac == known.String() })
}

func (a commands) approveCommand() *cobra.Command {
	var noWait bool
	c := a.QuietFlag(&cobra.Command{
		Use:   "approve MAC...",
		Short: "Make machines that boot from the network nodes",
		Long: `Make machines that boot from the network nodes of the machine, and wait until they are up. margay nodes lists the machines that wait
for this. They are named by the address of the network card that they boot from. A machine that does not wait can be named as well, as
for a rack that is not delivered yet: the command says so, and it comes when it is switched on.

A node keeps its number and its address until margay machine shrink takes it out, also in a later machine of the same name.`,
		Example: "  margay node approve 52:54:00:12:34:56",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			for _, text := range args {
				if _, err := metal.ParseMAC(text); err != nil {
					return err
				}
			}
			d, err := a.Running()
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			list, err := command.Ask[*control.Nodes](ctx, a.App, &control.ListNodes{})
			if err != nil {
				return err
			}
			nodes, err := d.Approve(ctx, args, client.UserName())
			if err != nil {
				return a.goesOn(ctx, err)
			}
			for i, n := range nodes {
				mac := args[min(i, len(args)-1)]
				if waits(list.Guests, mac) {
					a.Report("%s is %s", mac, nodeset.Condense([]uint32{n}))
				} else {
					a.Report("%s is %s, but no machine with this network card waits: it comes when it boots from the network; margay machine shrink -m %s %[2]s takes a wrong one back", mac, nodeset.Condense([]uint32{n}), a.Machine)
				}
			}
			if noWait {
				return nil
			}
			return a.goesOn(ctx, d.AwaitUp(ctx, nodes, a.Report))
		},
	})
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the nodes are up")
	return c
}

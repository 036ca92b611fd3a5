package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"margay/tools/margay/bench/boots"
	"margay/tools/margay/bench/page"
	"margay/tools/margay/command"
)

// byBoot is the command that writes its figures into a page.
const byBoot = "margay bench boot"

// bootServices are the arguments of margay that run the services.
var bootServices = []string{"bench", "boot-services"}

// bootFlags are the flags of margay bench boot.
type bootFlags struct {
	plan          boots.Plan
	kernel, image int // sizes in MiB
	quick         bool
	markdown      bool
	into          string
}

func (a commands) benchBootCommand() *cobra.Command {
	var f bootFlags
	c := a.JSONFlag(&cobra.Command{
		Use:   "boot",
		Short: "Measure how long many machines need to boot over the network",
		Long: `Measure how long machines need that are switched on at the same moment, from their first question for an address until they have
the kernel and the node image, and the memory and the processor time of the boot services. The machines are simulated: each is a
station on loopback, and speaks DHCP, TFTP and HTTP as firmware and iPXE do. The services are the ones of margay machine up, in a
process of their own. This needs no machine and no rights.

The firmware is pxe (UEFI PXE, which fetches an iPXE by TFTP), http (UEFI HTTP boot) or card (a network card with an iPXE). Each
station checks what it gets. Waits are the scripts that let a machine wait for its turn; repeated are questions without
an answer and transfers that were continued. Memory and processor time are of the services, and MB/s of the files. Figures of
machines on loopback have no network in them: compare figures of one measurement only.`,
		Example: `  margay bench boot
  margay bench boot --clients 100 --firmware card --strangers 500
  margay bench boot --quick --json
  margay bench boot --into docs/netboot.md`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			figures, err := a.benchBoot(ctx, f)
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				return err
			}
			return a.print(figures, boots.Headings, output{f.markdown, f.into, byBoot})
		},
	})
	f.add(c.Flags())
	c.Flags().BoolVarP(&a.Quiet, "quiet", "q", false, "print no progress, only the figures")
	return c
}

// bootServicesCommand runs the services of a measurement.
func (a commands) bootServicesCommand() *cobra.Command {
	return &cobra.Command{
		Use:    bootServices[1],
		Hidden: true,
		Args:   command.NoArguments,
		RunE:   func(c *cobra.Command, _ []string) error { return boots.Serve(c.Context(), c.InOrStdin(), a.Stdout) },
	}
}

// add adds the flags to a command.
func (f *bootFlags) add(flags *pflag.FlagSet) {
	flags.IntSliceVar(&f.plan.Clients, "clients", []int{1, 10, 100, 1000}, "how many machines")
	flags.StringVar(&f.plan.Firmware, "firmware", boots.PXE, "what they boot by: "+strings.Join(boots.Firmwares, ", "))
	flags.IntVar(&f.kernel, "kernel-size", 10, "size of the kernel, in MiB")
	flags.IntVar(&f.image, "image-size", 8, "size of the node image, in MiB")
	flags.IntVar(&f.plan.Turns, "turns", 0, "how many fetch the image at the same time (default: as in a machine)")
	flags.IntVar(&f.plan.Strangers, "strangers", 0, "strange stations, which hold connections and ask for addresses")
	flags.IntVar(&f.plan.Slow, "slow", 0, "further nodes, which fetch the image at 16 bytes a second")
	flags.DurationVar(&f.plan.Patience, "timeout", 10*time.Minute, "how long a machine may need")
	flags.BoolVar(&f.quick, "quick", false, "few machines and small files, which only shows that everything works")
	flags.BoolVar(&f.markdown, "markdown", false, "print Markdown")
	flags.StringVar(&f.into, "into", "", "write the figures into this page, between its two lines for them")
}

// check refuses wrong flags.
func (f *bootFlags) check(c *cobra.Command) error {
	if err := command.Positive(c, "kernel-size", "image-size", "timeout", "into"); err != nil {
		return err
	}
	if !slices.Contains(boots.Firmwares, f.plan.Firmware) {
		return fmt.Errorf("bench boot: --firmware %s: it is one of %s", f.plan.Firmware, strings.Join(boots.Firmwares, ", "))
	}
	for _, n := range f.plan.Clients {
		if n < 1 || n > boots.MostClients {
			return fmt.Errorf("bench boot: --clients %d: it is 1 to %d", n, boots.MostClients)
		}
	}
	for flag, n := range map[string]int{"turns": f.plan.Turns, "strangers": f.plan.Strangers, "slow": f.plan.Slow} {
		if n < 0 || n > boots.MostClients {
			return fmt.Errorf("bench boot: --%s %d: it is 0 to %d", flag, n, boots.MostClients)
		}
	}
	if f.into != "" {
		if err := intoPage(f.into, byBoot, nil); err != nil {
			return err
		}
	}
	f.plan.Kernel, f.plan.Image = int64(f.kernel)<<20, int64(f.image)<<20
	if f.quick {
		f.plan.Kernel, f.plan.Image = 256<<10, 256<<10
		if !c.Flags().Changed("clients") {
			f.plan.Clients = []int{1, 10}
		}
	}
	return nil
}

// benchBoot measures. Nothing of it is left when it returns.
func (a commands) benchBoot(ctx context.Context, f bootFlags) (*boots.Figures, error) {
	figures := &boots.Figures{Host: page.ThisHost(a.Version)}
	f.plan.Services = append([]string{"/proc/self/exe"}, bootServices...)
	p := f.plan
	figures.Plan = fmt.Sprintf("Firmware: %s; a kernel of %d KiB and a node image of %d KiB.", p.Firmware, p.Kernel>>10, p.Image>>10)
	if p.Turns > 0 {
		figures.Plan += fmt.Sprintf(" At most %d machines fetch them at the same time.", p.Turns)
	}
	if p.Strangers+p.Slow > 0 {
		figures.Plan += fmt.Sprintf(" %d strangers and %d slow nodes disturb.", p.Strangers, p.Slow)
	}
	var err error
	figures.Results, err = boots.Measure(ctx, p, a.Report)
	return figures, err
}

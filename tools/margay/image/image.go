// Package image has the commands that build node images and look into them.
package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"margay/cluster/machine"
	"margay/cluster/provision"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.imageCommand()}
}

func (a commands) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Build and look into node images"}
	c.AddCommand(a.imageBuildCommand(), a.imageListCommand())
	return c
}

// build holds the flags of margay image build.
type build struct {
	image        provision.ImageOptions
	bootable     provision.BootableOptions
	out, profile string
	format, uki  string
	token        string
	pin          bool
}

func (a commands) imageBuildCommand() *cobra.Command {
	var b build
	c := a.QuietFlag(a.JSONFlag(&cobra.Command{
		Use:   "build",
		Short: "Build the node image",
		Long: `Build the image that nodes boot from: the node program, the init of jobs beside it, and the kernel modules that a node
loads. Two builds of the same parts have the same bytes. margay machine up does this automatically.

UEFI firmware boots the formats uki and disk: a unified kernel image is one EFI program of a stub, the
kernel, its command line and the image of metal nodes; a disk image has that program in an EFI system partition, and can be
copied to a disk or a USB stick. A node that boots them asks the network for a machine of the substrate metal, and joins it when it
is approved, as machines do that boot from their network card. Neither has a secret, nor anything of one node, unless --token puts
the token of one into it.`,
		Example: `  margay image build
  margay image build -o node.img --json
  margay image build --refresh    # with the newest kernel there is
  margay image build --format disk -o node.disk`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error { return a.build(c, b) },
	}))
	f := c.Flags()
	f.StringVar(&b.format, "format", string(provision.Netboot), "the form of the output: netboot (the image alone), uki (a unified kernel image) or disk (a disk image)")
	f.StringVarP(&b.out, "output", "o", "", "write the image here, besides the cache")
	f.StringVar(&b.image.Kernel, "kernel", os.Getenv("KERNEL"), "generic (the distribution's, for real machines), or a kernel of your own: a vmlinuz, or a folder with boot and lib/modules (environment: KERNEL)")
	f.BoolVar(&b.image.Refresh, "refresh", false, "look for a newer kernel than the one in the cache")
	f.StringVar(&b.image.Program, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
	f.BoolVar(&b.image.Metal, "metal", false, "with the drivers of network cards of real machines; uki and disk always have them")
	command.CardFirmwareFlag(f, &b.image.CardFirmware, provision.Nonfree, "with --metal, uki and disk")
	f.StringVar(&b.profile, "profile", initramfs.Isolated.String(), "with uki and disk: the boot profile, as of the machine: isolated, ticking or sched")
	f.StringVar(&b.bootable.Words, "kernel-args", "", "with uki and disk: further words for the command line of the kernel")
	f.StringVar(&b.bootable.Stub, "stub", "", "with uki and disk: an EFI stub of your own (default: systemd's, from the distribution)")
	f.StringVar(&b.uki, "uki", "", "with disk: a unified kernel image that exists, for instance a signed one, instead of a new one")
	f.StringVar(&b.token, "token", "", "with uki and disk: a file with the token of a node (margay node token), or - for standard input: the machine that boots this needs no approval")
	f.BoolVar(&b.pin, "pin", false, "with uki and disk: nodes join no machine but the one that is up now (-m), which they know by its key")
	return c
}

// build builds an image and writes it.
func (a commands) build(c *cobra.Command, b build) error {
	format, err := provision.ParseFormat(b.format)
	if err != nil {
		return err
	}
	if b.out != "" {
		if err := provision.CheckOutput(b.out); err != nil {
			return err
		}
	}
	if format == provision.Netboot {
		if err := command.Without(c, "is for --format uki and disk", "profile", "kernel-args", "stub", "uki", "token", "pin"); err != nil {
			return err
		}
		if !b.image.Metal {
			if err := command.Without(c, "is for an image with drivers of real cards: --metal, or --format uki or disk", command.CardFirmware); err != nil {
				return err
			}
		}
	} else if b.uki != "" {
		return a.onDisk(c, format, b)
	} else if err := a.bootable(format, &b); err != nil {
		return err
	}
	if b.image.Program, b.image.JobInit, err = command.NodePrograms(b.image.Program); err != nil {
		return err
	}
	b.image.Told = a.Progress()
	image, err := provision.BuildImage(c.Context(), b.image)
	if err != nil {
		return err
	}
	if format == provision.Netboot {
		if b.out != "" {
			if err := initramfs.WriteNodeImage(image.Path, nil, b.out); err != nil {
				return err
			}
			image.Path = b.out
		}
		return a.printImage(image)
	}
	b.bootable.Told = b.image.Told
	made, err := provision.WriteBootable(c.Context(), image, b.bootable)
	if err != nil {
		return err
	}
	return a.printBootable(made, &image)
}

// onDisk writes a disk image with a unified kernel image that exists.
func (a commands) onDisk(c *cobra.Command, format provision.Format, b build) error {
	if format != provision.Disk || b.out == "" {
		return errors.New("--uki needs --format disk and a file to write: -o FILE")
	}
	err := command.Without(c, "is for a new unified kernel image, and --uki names one that exists",
		"kernel", "refresh", "node-program", "metal", command.CardFirmware, "profile", "kernel-args", "stub", "token", "pin")
	if err != nil {
		return err
	}
	made, err := provision.WriteDisk(b.uki, b.out)
	if err != nil {
		return err
	}
	return a.printBootable(made, nil)
}

// bootable completes the options of a file that UEFI firmware boots.
func (a commands) bootable(format provision.Format, b *build) (err error) {
	if b.out == "" {
		return fmt.Errorf("--format %s needs a file to write: -o FILE", format)
	}
	b.image.Metal, b.bootable.Format, b.bootable.Path = true, format, b.out
	if b.token != "" {
		if b.bootable.Token, err = a.readToken(b.token); err != nil {
			return err
		}
	}
	if b.bootable.Profile, err = initramfs.ParseProfile(b.profile); err != nil || !b.pin {
		return err
	}
	d, err := a.Dir()
	if err == nil {
		err = d.Made()
	}
	if err != nil {
		return err
	}
	b.bootable.Machine, err = machine.Dir(d).Fingerprint()
	return err
}

// mostToken bounds a file with a token, in bytes.
const mostToken = 1024

// readToken reads the token of a node from a file, or from standard input for "-".
func (a commands) readToken(path string) (string, error) {
	in := io.Reader(a.Stdin)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, mostToken))
	if err != nil {
		return "", err
	}
	token, err := machine.ParseNodeToken(strings.TrimSpace(string(text)))
	if err != nil {
		return "", fmt.Errorf("--token %s: %w", path, err)
	}
	return token.String(), nil
}

// printBootable prints a file that UEFI firmware boots, and the image if one was built for it.
func (a commands) printBootable(made provision.Bootable, image *provision.Image) error {
	switch {
	case a.JSON:
		return show.Value(a.Stdout, struct {
			provision.Bootable
			Image *provision.Image `json:"image,omitempty"`
		}{made, image})
	case a.Quiet:
		return nil
	}
	fmt.Fprintf(a.Stdout, "%s\n", made.Path)
	fmt.Fprintf(a.Stdout, "%s, %.1f MB, sha256 %s\n", made.Format, float64(made.Size)/1e6, made.SHA256)
	fmt.Fprintf(a.Stdout, "command line %s\n", printable.Line(made.Cmdline))
	if image == nil {
		return nil
	}
	fmt.Fprintf(a.Stdout, "EFI stub %s\n", made.Stub)
	return a.printImage(*image)
}

func (a commands) printImage(image provision.Image) error {
	switch {
	case a.JSON:
		return show.Value(a.Stdout, image)
	case a.Quiet:
		return nil
	}
	m := image.Manifest
	fmt.Fprintf(a.Stdout, "%s\n", image.Path)
	fmt.Fprintf(a.Stdout, "%.1f MB, %.1f MB unpacked, sha256 %s\n", float64(m.Compressed)/1e6, float64(m.Uncompressed)/1e6, m.SHA256)
	fmt.Fprintf(a.Stdout, "kernel %s (%s)\n", image.Kernel.Image, m.Source)
	fmt.Fprintf(a.Stdout, "modules, in load order: %v; part of the kernel: %v\n", m.Modules, m.BuiltIn)
	if len(m.Drivers) > 0 {
		fmt.Fprintf(a.Stdout, "drivers, loaded on nodes that have their devices, and what they need: %v\n", m.Drivers)
	}
	if len(m.Firmware)+len(m.NoFirmware) > 0 {
		fmt.Fprintln(a.Stdout, m.FirmwareText())
	}
	for _, lack := range m.Lacks {
		fmt.Fprintf(a.Stdout, "the kernel lacks %s: %s\n", lack, guestkernel.Describe(lack))
	}
	return nil
}

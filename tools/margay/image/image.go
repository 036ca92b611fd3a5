// Package image has the commands that build node images and look into them.
package image

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"margay/cluster/provision"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
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

func (a commands) imageBuildCommand() *cobra.Command {
	var o provision.ImageOptions
	var out string
	c := a.QuietFlag(a.JSONFlag(&cobra.Command{
		Use:   "build",
		Short: "Build the node image",
		Long: `Build the image that nodes boot from: the node program, the init of jobs beside it, and the kernel modules that a node
loads. Two builds of the same parts have the same bytes. margay machine up does this automatically.`,
		Example: "  margay image build\n  margay image build -o node.img --json\n  margay image build --refresh    # with the newest kernel there is",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Program, o.JobInit, err = command.NodePrograms(o.Program); err != nil {
				return err
			}
			o.Told = a.Progress()
			image, err := provision.BuildImage(c.Context(), o)
			if err != nil {
				return err
			}
			if out != "" {
				if err := initramfs.WriteNodeImage(image.Path, nil, out); err != nil {
					return err
				}
				image.Path = out
			}
			return a.printImage(image)
		},
	}))
	c.Flags().StringVarP(&out, "output", "o", "", "write the image here, besides the cache")
	c.Flags().StringVar(&o.Kernel, "kernel", os.Getenv("KERNEL"), "a kernel of your own: a vmlinuz, or a folder with boot and lib/modules (environment: KERNEL)")
	c.Flags().BoolVar(&o.Refresh, "refresh", false, "look for a newer kernel than the one in the cache")
	c.Flags().StringVar(&o.Program, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
	return c
}

func (a commands) printImage(image provision.Image) error {
	switch {
	case a.Quiet:
		return nil
	case a.JSON:
		return show.Value(a.Stdout, image)
	}
	m := image.Manifest
	fmt.Fprintf(a.Stdout, "%s\n", image.Path)
	fmt.Fprintf(a.Stdout, "%.1f MB, %.1f MB unpacked, sha256 %s\n", float64(m.Compressed)/1e6, float64(m.Uncompressed)/1e6, m.SHA256)
	fmt.Fprintf(a.Stdout, "kernel %s (%s)\n", image.Kernel.Image, m.Source)
	fmt.Fprintf(a.Stdout, "modules, in load order: %v; part of the kernel: %v\n", m.Modules, m.BuiltIn)
	for _, lack := range m.Lacks {
		fmt.Fprintf(a.Stdout, "the kernel lacks %s: %s\n", lack, guestkernel.Describe(lack))
	}
	return nil
}

func (a commands) imageListCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:     "list IMAGE",
		Short:   "List the contents of a node image",
		Example: "  margay image build -q -o node.img && margay image list node.img",
		Args:    command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			entries, err := initramfs.List(f)
			if err != nil {
				return err
			}
			if a.JSON {
				return show.Value(a.Stdout, entries)
			}
			for _, e := range entries {
				target := ""
				if e.Mode&fs.ModeSymlink != 0 {
					target = " -> " + e.Target
				}
				fmt.Fprintf(a.Stdout, "%v %5d %5d %10d %s%s\n", e.Mode, e.UID, e.GID, e.Size, e.Path, target)
			}
			return nil
		},
	})
}

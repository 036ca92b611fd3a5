package main

import (
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/provision"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/internal/progress"
)

func (a *app) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Build and look into node images"}
	c.AddCommand(a.imageBuildCommand(), a.imageListCommand())
	return c
}

func (a *app) imageBuildCommand() *cobra.Command {
	var o provision.ImageOptions
	var out string
	c := a.jsonFlag(&cobra.Command{
		Use:   "build",
		Short: "Build the node image",
		Long: `Build the image that nodes boot from: the node program and the kernel modules it loads. Two builds of the same
parts have the same bytes. margay machine up does this by itself.`,
		Example: "  margay image build\n  margay image build -o node.img --json\n  margay image build --refresh    # with the newest kernel there is",
		Args:    noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Program, err = nodeProgram(o.Program); err != nil {
				return err
			}
			o.Told = a.progress()
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
	})
	c.Flags().StringVarP(&out, "output", "o", "", "write the image here, besides the cache")
	c.Flags().StringVar(&o.Kernel, "kernel", os.Getenv("KERNEL"), "a kernel of your own: a vmlinuz, or a folder with boot and lib/modules (environment: KERNEL)")
	c.Flags().BoolVar(&o.Refresh, "refresh", false, "look for a newer kernel than the one in the cache")
	c.Flags().StringVar(&o.Program, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
	return c
}

func (a *app) printImage(image provision.Image) error {
	if a.json {
		return printValue(a.stdout, image)
	}
	m := image.Manifest
	fmt.Fprintf(a.stdout, "%s\n", image.Path)
	fmt.Fprintf(a.stdout, "%.1f MB, %.1f MB unpacked, sha256 %s\n", float64(m.Compressed)/1e6, float64(m.Uncompressed)/1e6, m.SHA256)
	fmt.Fprintf(a.stdout, "kernel %s (%s)\n", image.Kernel.Image, m.Source)
	fmt.Fprintf(a.stdout, "modules, in load order: %v; part of the kernel: %v\n", m.Modules, m.BuiltIn)
	for _, lack := range m.Lacks {
		fmt.Fprintf(a.stdout, "the kernel lacks %s: %s\n", lack, guestkernel.Describe(lack))
	}
	return nil
}

func (a *app) imageListCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "list IMAGE",
		Short: "List what is in a node image",
		Args:  arguments(1, 1),
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
			if a.json {
				return printValue(a.stdout, entries)
			}
			for _, e := range entries {
				target := ""
				if e.Mode&fs.ModeSymlink != 0 {
					target = " -> " + e.Target
				}
				fmt.Fprintf(a.stdout, "%v %5d %5d %10d %s%s\n", e.Mode, e.UID, e.GID, e.Size, e.Path, target)
			}
			return nil
		},
	})
}

// How long work goes on before its progress is shown, and how often it is shown then.
const (
	progressDelay    = time.Second
	progressInterval = 200 * time.Millisecond
)

// progress shows the steps of work that takes a while: on a terminal as a line that changes, elsewhere a line for each step
// that moves bytes.
func (a *app) progress() func(progress.Step) {
	terminal := isTerminal(a.stderr)
	started := time.Now()
	var shown time.Time
	var last string
	return func(s progress.Step) {
		done := s.Done == s.Total
		if time.Since(started) < progressDelay || s.Total == 0 || (s.Text == last && (!terminal || time.Since(shown) < progressInterval && !done)) {
			return
		}
		text := fmt.Sprintf("%s: %.1f of %.1f MB", s.Text, float64(s.Done)/1e6, float64(s.Total)/1e6)
		if terminal && s.Text == last {
			fmt.Fprint(a.stderr, "\x1b[A\x1b[K")
		}
		if !terminal {
			text = s.Text
		}
		last, shown = s.Text, time.Now()
		fmt.Fprintln(a.stderr, text)
	}
}

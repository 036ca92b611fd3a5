package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"margay/cluster/provision"
	"margay/initramfs"
	"margay/initramfs/disk"
	"margay/initramfs/uki"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) imageListCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:   "list IMAGE",
		Short: "List the contents of a node image",
		Long: `List the files of a node image. Of a unified kernel image or a disk image, list its parts first, each with its
SHA-256. The part .initrd is the node image.`,
		Example: "  margay image build -q -o node.img && margay image list node.img",
		Args:    command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			text, err := read(args[0])
			if err != nil {
				return err
			}
			l, err := look(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			switch {
			case !a.JSON:
				a.print(l)
				return nil
			case l.Image == nil:
				return show.Value(a.Stdout, l.Entries)
			}
			return show.Value(a.Stdout, l)
		},
	})
}

// maxFile bounds a file that is listed, in bytes.
const maxFile = 1 << 30

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes, which is not an image of a node", path, maxFile)
	}
	return text, err
}

// listing is what an image consists of.
type listing struct {
	Program     string            `json:"program,omitempty"`      // path in the EFI system partition of a disk
	Image       *uki.Image        `json:"unified,omitempty"`      // nil: a node image alone
	CommandLine string            `json:"command_line,omitempty"` // without the token
	Token       bool              `json:"token,omitempty"`        // it has the token of a node
	Entries     []initramfs.Entry `json:"entries"`
}

// look finds out what an image is, and what it consists of.
func look(text []byte) (l listing, err error) {
	if disk.Is(text) {
		name, program, err := disk.Read(text)
		if err != nil {
			return l, err
		}
		l.Program, text = disk.Folder+"/"+name, program
	}
	image, err := uki.Read(text)
	switch {
	case err == nil:
		l.Image = &image
		l.CommandLine, l.Token = provision.WithoutToken(string(image.Part(uki.Cmdline)))
		text = image.Part(uki.Initrd)
	case l.Program != "" || !errors.Is(err, uki.ErrNoProgram):
		return l, err
	}
	l.Entries, err = initramfs.List(bytes.NewReader(text))
	return l, err
}

// print prints a listing, whose names are untrusted.
func (a commands) print(l listing) {
	if l.Program != "" {
		fmt.Fprintf(a.Stdout, "disk with an EFI system partition, %s in it\n", printable.Line(l.Program))
	}
	if l.Image != nil {
		signed := "not signed"
		if l.Image.Signed {
			signed = "signed"
		}
		fmt.Fprintf(a.Stdout, "unified kernel image for %s, %s\n", l.Image.Processor(), signed)
		for _, p := range l.Image.Parts {
			fmt.Fprintf(a.Stdout, "%-8s %10d sha256 %s\n", p.Name, p.Size, p.SHA256)
		}
		fmt.Fprintf(a.Stdout, "command line %s\n", printable.Line(strings.TrimRight(l.CommandLine, "\x00")))
		if l.Token {
			fmt.Fprintln(a.Stdout, "with the token of a node")
		}
	}
	for _, e := range l.Entries {
		target := ""
		if e.Mode&fs.ModeSymlink != 0 {
			target = " -> " + e.Target
		}
		fmt.Fprintf(a.Stdout, "%v %5d %5d %10d %s%s\n", e.Mode, e.UID, e.GID, e.Size, e.Path, target)
	}
}

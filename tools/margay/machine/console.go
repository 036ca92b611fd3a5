package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/machine"
	"margay/internal/nodeset"
	"margay/kernel/abi/id"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) consoleCommand() *cobra.Command {
	var follow, previous bool
	c := &cobra.Command{
		Use:   "console NODE",
		Short: "Show the console of a node",
		Long: `Show the console of a node: of a virtual node its serial port, of a metal node what its Linux sends over the network since it has got
its configuration, and of a hosted node what its programs write.

On a terminal, the console of a metal node is its serial port if the machine file has a command for it below console (docs/netboot.md).
The command gets the terminal and the keys until it ends. With --follow, or in a pipe, the text that is kept is shown instead.

With --previous it is the console of a metal node's last boot before this one that has sent anything, and the end of the log of a Linux
that has panicked, if the firmware of the node has kept it.`,
		Example: "  margay machine console 2 --follow\n  margay machine console 2 --previous | tail -40",
		Args:    command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			node, err := nodeset.ParseNode(args[0])
			if err != nil {
				return err
			}
			if follow && previous {
				return errors.New("--previous is of a boot that has ended: it cannot be followed")
			}
			d, err := a.Dir()
			if err != nil {
				return err
			}
			s, err := d.ReadSpec()
			if err != nil {
				return err
			}
			if !follow && !previous && command.IsTerminal(a.Stdin) && show.IsTerminal(a.Stdout) {
				if serial, err := serialCommand(s, node); err != nil {
					return err
				} else if serial != nil {
					return execSerial(serial)
				}
			}
			if previous {
				return a.showPrevious(c.Context(), d, node)
			}
			f, err := os.Open(d.ConsoleLog(id.Node(node)))
			if errors.Is(err, os.ErrNotExist) {
				if r, err := d.ReadRoster(s); err == nil && !r.Has(node) {
					return fmt.Errorf("machine %s has no node%d: its nodes are %s", a.Machine, node, nodeset.Condense(r.Nodes))
				}
				return fmt.Errorf("the console of node%d of machine %s shows nothing yet", node, a.Machine)
			}
			if err != nil {
				return err
			}
			return a.show(c.Context(), f, follow)
		},
	}
	followFlag(c, &follow)
	c.Flags().BoolVar(&previous, "previous", false, "show the console of the boot before this one")
	return c
}

// showPrevious prints the parts of the console of a node's boot before this one, and what the
// firmware of the node has kept, the later one last.
func (a commands) showPrevious(ctx context.Context, d machine.Dir, node uint32) error {
	parts := d.PreviousConsole(id.Node(node))
	paths := []string{parts[0], parts[1], d.FirmwareLog(id.Node(node))}
	if changed(paths[2]).Before(changed(paths[1])) {
		paths = []string{paths[2], paths[0], paths[1]}
	}
	shown := false
	for _, path := range paths {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = a.show(ctx, f, false)
		}
		if err != nil {
			return err
		}
		shown = true
	}
	if !shown {
		return fmt.Errorf("machine %s keeps nothing of an earlier boot of node%d: only metal nodes that have booted twice have that", a.Machine, node)
	}
	return nil
}

// changed returns when a file was changed last, or the zero time.
func changed(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func (a commands) logsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs [serve|holder]",
		Short: "Show the log of a daemon of a machine",
		Long: `Show the log of a daemon of a machine: of serve, which has what happened to nodes and jobs, and which connections were refused and
why; or of the holder, which starts and ends the nodes. The last 8 to 16 MiB of a log are kept.`,
		Example: "  margay machine logs --follow\n  margay machine logs holder",
		Args:    command.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			who := "serve"
			if len(args) > 0 {
				who = args[0]
			}
			if who != "serve" && who != "holder" {
				return fmt.Errorf("machine logs %s: the daemons are serve and holder", who)
			}
			d, err := a.Dir()
			if err != nil {
				return err
			}
			if _, err := d.ReadSpec(); err != nil {
				return err
			}
			log, old, err := d.OpenLog(who)
			if err != nil {
				return err
			}
			if old != nil {
				if err := a.show(c.Context(), old, false); err != nil {
					return errors.Join(err, log.Close())
				}
			}
			return a.show(c.Context(), log, follow)
		},
	}
	followFlag(c, &follow)
	return c
}

func followFlag(c *cobra.Command, follow *bool) {
	c.Flags().BoolVarP(follow, "follow", "f", false, "continue until Ctrl-C, or until the machine goes down")
}

// show prints a file of the machine, and follows it if follow is set. It closes the file.
func (a commands) show(ctx context.Context, f *os.File, follow bool) error {
	if !follow {
		defer f.Close()
		_, err := io.Copy(a.Stdout, f)
		return err
	}
	return copyFollowing(ctx, a.Stdout, f, func() error {
		_, err := a.Running()
		return err
	})
}

// followPause is how often a file is looked at for more.
const followPause = 100 * time.Millisecond

// copyFollowing copies f and whatever is appended to it, or to the file that takes its place when
// it is rotated, until ctx ends or ended returns an error, the reason of the end.
// It closes f.
func copyFollowing(ctx context.Context, w io.Writer, f *os.File, ended func() error) error {
	defer func() { f.Close() }()
	for {
		end := ended()            // before the last look
		next, err := successor(f) // nothing more is appended to f when there is one
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		if next != nil {
			f.Close()
			f = next
		}
		switch {
		case err != nil:
			return err
		case end != nil:
			return end
		case next != nil:
			continue
		}
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// successor opens the file that has the name of f now. It is nil when that is f, or there is none.
func successor(f *os.File) (*os.File, error) {
	next, err := os.Open(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	was, err1 := f.Stat()
	is, err2 := next.Stat()
	if err := errors.Join(err1, err2); err != nil || os.SameFile(was, is) {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

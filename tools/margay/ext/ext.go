// Package ext has the commands that insert, watch and remove extensions.
package ext

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.extCommand()}
}

func (a commands) extCommand() *cobra.Command {
	c := &cobra.Command{Use: "ext", Short: "Insert, watch and remove extensions"}
	c.AddCommand(a.extSlotsCommand(), a.extListCommand(), a.extStatsCommand(), a.extLogCommand(), a.extInsertCommand(), a.extRemoveCommand())
	return c
}

func (a commands) extListCommand() *cobra.Command {
	node := int32(control.None)
	c := a.JSONFlag(&cobra.Command{
		Use:     "list",
		Short:   "List extensions with their figures, and removed ones with reasons",
		Example: "  margay ext list\n  margay ext list --node 2 --json",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := command.Ask[*control.Extensions](c.Context(), a.App, &control.ListExtensions{Node: node})
			if err != nil {
				return err
			}
			return a.printExtensions(list)
		},
	})
	a.NodeFlag(c, &node, "only extensions of this node")
	return c
}

func (a commands) extInsertCommand() *cobra.Command {
	var m control.InsertExtension
	var settings []string
	node := int32(control.None)
	c := a.QuietFlag(a.JSONFlag(&cobra.Command{
		Use:   "insert [JOB] OBJECT",
		Short: "Insert an extension into a running job, or into the machine",
		Long: `Insert an extension, an ELF object made by clang -target bpf, into the slot that its section names, of a running job, on all of
its nodes. Without a job it is the machine's own: it acts on the events of all jobs, before their extensions, on all nodes, until it
is removed. A node that is away, or boots again, gets it before it gets jobs; a boot loses its maps. An extension in slot place is the
allocator's, and runs in margay serve: it chooses the nodes of jobs.`,
		Example: `  margay ext insert 7 accumulate.o
  margay ext insert 7 ext/sched/weighted/weighted.o --set weight0=5
  margay ext insert roundrobin.o --node=2
  margay ext insert ext/place/spread/spread.o`,
		Args: command.Arguments(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			object := args[len(args)-1]
			if len(args) == 2 {
				if m.Job, err = command.ParseJob(args[0]); err != nil {
					return err
				}
			}
			if m.Object, err = os.ReadFile(object); err != nil {
				return err
			}
			if !bytes.HasPrefix(m.Object, []byte(elf.ELFMAG)) {
				return fmt.Errorf("%s is not an ELF object; clang -target bpf makes them", object)
			}
			if m.Name == "" {
				m.Name = strings.TrimSuffix(filepath.Base(object), ".o")
			}
			if m.Settings, err = command.ParseSettings(settings); err != nil {
				return err
			}
			m.Node = node
			list, err := command.AskWithin[*control.Extensions](c.Context(), a.App, &m, command.ChangeTimeout)
			if err != nil {
				return fmt.Errorf("%s: %w", object, err)
			}
			if a.Quiet {
				return nil
			}
			return a.printExtensions(list)
		},
	}))
	c.Flags().StringVar(&m.Name, "name", "", "its name (default: the name of the file)")
	c.Flags().StringArrayVar(&settings, "set", nil, "the value of a constant of the extension, as NAME=VALUE; may be given again")
	c.Flags().StringVar(&m.Slot, "slot", "", "the slot of an object whose section names none; of an object with several programs, which one is meant")
	a.NodeFlag(c, &node, "only on this node")
	return c
}

func (a commands) extRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "remove NODE.HANDLE...",
		Short:   "Take extensions out of their slots, also on nodes that are away",
		Example: "  margay ext remove 0.3 1.3\n  margay ext remove serve.4",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			for _, arg := range args {
				m, err := command.ParseExtension(arg)
				if err != nil {
					return err
				}
				if _, err := command.AskWithin[*control.Done](c.Context(), a.App, m, command.ChangeTimeout); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (a commands) printExtensions(list *control.Extensions) error {
	if a.JSON {
		return show.Message(a.Stdout, list)
	}
	t := show.NewTable(a.Stdout, "ID", "JOB", "SLOT", "NAME", "ENGINE", "RUNS", "INSNS/RUN", "NS/RUN", "FAULTS", "DROPPED", "STATE")
	var notes []string
	for _, x := range list.Extensions {
		id := command.ExtensionID(x.Node, x.Handle)
		t.Row(id, command.Whose(x.Job), x.Slot, x.Name, x.Engine, x.Runs, perRun(x.Instructions, x.Runs), perRun(uint64(x.TimeNs), x.Runs), x.Faults, x.Dropped, x.State)
		if x.Waits != "" {
			notes = append(notes, fmt.Sprintf("%s: does not run yet: %s", id, x.Waits))
		}
		if x.LastFault != "" {
			notes = append(notes, fmt.Sprintf("%s: last fault: %s", id, x.LastFault))
		}
		if x.Passed != "" {
			notes = append(notes, fmt.Sprintf("%s: no better engine: %s", id, x.Passed))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(a.Stdout, note)
	}
	return nil
}

func perRun(total, runs uint64) string {
	if runs == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(total)/float64(runs))
}

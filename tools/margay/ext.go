package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"margay/cluster/control"
)

func (a *app) extCommand() *cobra.Command {
	c := &cobra.Command{Use: "ext", Short: "Insert, watch and remove extensions"}
	c.AddCommand(a.extSlotsCommand(), a.extListCommand(), a.extStatsCommand(), a.extLogCommand(), a.extInsertCommand(), a.extRemoveCommand())
	return c
}

func (a *app) extListCommand() *cobra.Command {
	node := int32(control.None)
	c := a.jsonFlag(&cobra.Command{
		Use:   "list",
		Short: "List the extensions of the machine and of running jobs, what they have done, and which were removed lately and why",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := ask[*control.Extensions](c.Context(), a, &control.ListExtensions{Node: node})
			if err != nil {
				return err
			}
			return a.printExtensions(list)
		},
	})
	a.nodeFlag(c, &node, "only those of this node")
	return c
}

func (a *app) extInsertCommand() *cobra.Command {
	var m control.InsertExtension
	var settings []string
	node := int32(control.None)
	c := a.jsonFlag(&cobra.Command{
		Use:   "insert [JOB] OBJECT",
		Short: "Insert an extension into a running job, or into the machine",
		Long: `Insert an extension, an ELF object made by clang -target bpf, into the slot that its section names, of a running job, on all of
its nodes. Without a job it is the machine's own: it acts on the events of all jobs, before their extensions, on all nodes, until it
is removed. A node that is away, or boots anew, gets it before it is given jobs; what it has remembered is lost with the boot.`,
		Example: `  margay ext insert 7 accumulate.o
  margay ext insert 7 ext/sched/weighted/weighted.o --set weight0=5
  margay ext insert roundrobin.o --node=2`,
		Args: arguments(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			object := args[len(args)-1]
			if len(args) == 2 {
				if m.Job, err = parseJob(args[0]); err != nil {
					return err
				}
			}
			if m.Object, err = os.ReadFile(object); err != nil {
				return err
			}
			if m.Name == "" {
				m.Name = strings.TrimSuffix(filepath.Base(object), ".o")
			}
			if m.Settings, err = parseSettings(settings); err != nil {
				return err
			}
			m.Node = node
			list, err := askWithin[*control.Extensions](c.Context(), a, &m, changeTimeout)
			if err != nil {
				return fmt.Errorf("%s: %w", object, err)
			}
			return a.printExtensions(list)
		},
	})
	c.Flags().StringVar(&m.Name, "name", "", "what it is called (default: the name of the file)")
	c.Flags().StringArrayVar(&settings, "set", nil, "the value of a constant of the extension, as NAME=VALUE; may be given again")
	c.Flags().StringVar(&m.Slot, "slot", "", "the slot of an object whose section names none; of an object with several programs, which one is meant")
	a.nodeFlag(c, &node, "only on this node")
	return c
}

func (a *app) extRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "remove NODE.HANDLE...",
		Short:   "Take extensions out of their slots, also on nodes that are away",
		Example: "  margay ext remove 0.3 1.3",
		Args:    arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			for _, arg := range args {
				name, number, _ := strings.Cut(arg, ".")
				node, err := parseNode(name)
				if err != nil {
					return err
				}
				handle, err := strconv.ParseUint(number, 10, 32)
				if err != nil {
					return fmt.Errorf("%q is no extension: they are called NODE.HANDLE (margay ext list)", arg)
				}
				if _, err := askWithin[*control.Done](c.Context(), a, &control.RemoveExtension{Node: node, Handle: uint32(handle)}, changeTimeout); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// whose names the owner of an extension.
func whose(job uint32) string {
	if job == 0 {
		return "machine"
	}
	return strconv.FormatUint(uint64(job), 10)
}

func (a *app) printExtensions(list *control.Extensions) error {
	if a.json {
		return printJSON(a.stdout, list)
	}
	t := newTable(a.stdout, "ID", "JOB", "SLOT", "NAME", "ENGINE", "RUNS", "INSNS/RUN", "NS/RUN", "FAULTS", "DROPPED", "STATE")
	var notes []string
	for _, x := range list.Extensions {
		id := fmt.Sprintf("%d.%d", x.Node, x.Handle)
		t.row(id, whose(x.Job), x.Slot, x.Name, x.Engine, x.Runs, perRun(x.Instructions, x.Runs), perRun(uint64(x.TimeNs), x.Runs), x.Faults, x.Dropped, x.State)
		if x.Waits != "" {
			notes = append(notes, fmt.Sprintf("%s: not asked yet: %s", id, x.Waits))
		}
		if x.LastFault != "" {
			notes = append(notes, fmt.Sprintf("%s: last fault: %s", id, x.LastFault))
		}
		if x.Passed != "" {
			notes = append(notes, fmt.Sprintf("%s: no better engine: %s", id, x.Passed))
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(a.stdout, note)
	}
	return nil
}

func perRun(total, runs uint64) string {
	if runs == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(total)/float64(runs))
}

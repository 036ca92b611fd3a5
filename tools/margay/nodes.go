package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/client"
	"margay/cluster/control"
)

func (a *app) nodesCommand() *cobra.Command {
	var noise time.Duration
	c := a.jsonFlag(&cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the machine and what their cores do",
		Example: `  margay nodes
  margay nodes --noise=10s    # what interrupts each application core`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if noise > 0 {
				return a.noise(c.Context(), noise)
			}
			nodes, err := ask[*control.Nodes](c.Context(), a, &control.ListNodes{})
			if err != nil {
				return err
			}
			if a.json {
				return printJSON(a.stdout, nodes)
			}
			return a.printNodes(nodes)
		},
	})
	c.Flags().DurationVar(&noise, "noise", 0, "count for so long what interrupts each application core, and print that")
	c.Flags().Lookup("noise").NoOptDefVal = "5s"
	return c
}

// healthNames are the states of nodes in words.
var healthNames = map[control.NodeHealth]string{
	control.NodeHealth_NODE_BOOTING: "booting",
	control.NodeHealth_NODE_UP:      "up",
	control.NodeHealth_NODE_LATE:    "late",
	control.NodeHealth_NODE_DEAD:    "dead",
	control.NodeHealth_NODE_REFUSED: "refused",
}

func (a *app) printNodes(nodes *control.Nodes) error {
	t := newTable(a.stdout, "NODE", "STATE", "CORES", "FREE", "MEMORY", "PROFILE", "SHARING", "KERNEL", "JOBS")
	var notes []string
	for _, n := range nodes.Nodes {
		name := fmt.Sprintf("node%d", n.Node)
		if n.Reason != "" {
			notes = append(notes, name+": "+n.Reason)
		}
		if n.Info == nil {
			t.row(name, healthNames[n.Health], "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		free := 0
		var jobs []string
		for _, core := range n.Cores {
			if core.Job == 0 {
				free++
			} else {
				jobs = append(jobs, fmt.Sprintf("%d.%s", core.Job, ranges(core.Ranks)))
			}
		}
		t.row(name, healthNames[n.Health], len(n.Cores), free, fmt.Sprintf("%d MiB", n.Info.Memory>>20), n.Info.Profile,
			cmp.Or(n.Info.Scheduler, "-"), n.Info.Kernel,
			strings.Join(jobs, " "))
		if n.Info.AllCores {
			notes = append(notes, name+" computes on core 0 as well, which serves the node: it is interrupted, and the timer ticks there")
		}
		if n.Info.MessageCore != 0 {
			notes = append(notes, fmt.Sprintf("%s handles messages on core %d, which does nothing else", name, n.Info.MessageCore))
		}
		for _, lack := range n.Info.Lacks {
			notes = append(notes, name+" lacks "+lack)
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, note := range condense(notes) {
		fmt.Fprintln(a.stdout, note)
	}
	return nil
}

// condense says once what is so on several nodes.
func condense(notes []string) []string {
	var texts []string
	nodes := make(map[string][]string)
	for _, note := range notes {
		name, text, _ := strings.Cut(note, " ")
		if nodes[text] == nil {
			texts = append(texts, text)
		}
		nodes[text] = append(nodes[text], strings.TrimSuffix(name, ":"))
	}
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = strings.Join(nodes[text], ",") + " " + text
	}
	return out
}

// noise prints how often each application core is interrupted.
func (a *app) noise(ctx context.Context, d time.Duration) error {
	socket, err := a.socket()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d+answerTimeout)
	defer cancel()
	report, err := client.Ask[*control.NoiseReport](ctx, socket, &control.Noise{DurationMs: uint32(d.Milliseconds()), Node: control.None})
	if err != nil {
		return err
	}
	if a.json {
		return printJSON(a.stdout, report)
	}
	t := newTable(a.stdout, "NODE", "CORE", "INTERRUPTS", "PER SECOND", "FROM")
	for _, c := range report.Cores {
		var from []string
		for _, r := range c.Rows {
			from = append(from, fmt.Sprintf("%s: %d", r.Name, r.Count))
		}
		t.row(fmt.Sprintf("node%d", c.Node), c.Core, c.Interrupts, fmt.Sprintf("%.1f", float64(c.Interrupts)/c.Seconds), strings.Join(from, "; "))
	}
	return t.flush()
}

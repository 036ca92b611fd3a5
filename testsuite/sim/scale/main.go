// Command scale prints how long jobs take on machines of up to a million nodes, as package sim
// simulates them.
//
//	go run ./testsuite/sim/scale [--nodes 1,1000] [--json]
//	go run ./testsuite/sim/scale --docs docs
//
// With --docs it writes the tables into scale.md of that folder, between two lines, and the plot
// into scale.svg.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"margay/testsuite/sim"
	"margay/tools/margay/bench/page"
	"margay/tools/margay/show"
)

// name is the command that writes the tables of the page.
const name = "testsuite/sim/scale"

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	list := flags.String("nodes", sim.All, "numbers of nodes")
	asJSON := flags.Bool("json", false, "print JSON, with times in nanoseconds")
	docs := flags.String("docs", "", "write scale.md and scale.svg in this folder")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	nodes, err := parse(*list)
	if err != nil {
		return err
	}
	figures, err := sim.Compute(nodes)
	switch {
	case err != nil:
		return err
	case *asJSON:
		return show.Value(stdout, figures)
	case *docs != "":
		return write(*docs, figures)
	}
	_, err = io.WriteString(stdout, figures.Markdown())
	return err
}

// most bounds the nodes that are simulated: a job has at most so many ranks.
const most = 1 << 20

// parse reads numbers of nodes.
func parse(list string) (nodes []int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("--nodes %s: %q is not a number from 1 to %d", list, word, most)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// write writes the page and the plot.
func write(folder string, figures sim.Figures) error {
	path := filepath.Join(folder, "scale.md")
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := page.Insert(string(old), name, figures.Markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "scale.svg"), []byte(figures.Plot()), 0o644)
}

// Command peers measures the engines of Nimble and what they are compared with, all in one run:
// wazero, whose modules are written by hand to do the same as the programs of nimble/bench, and the
// kernel of this machine. Every contender must give the same answers.
//
//	peers [-rounds N] [-turn D] [-json FILE] [-markdown FILE] [PROGRAM ...]
//
// It prints a table. A file in JSON is for programs, one in Markdown for documents.
//
// The kernel is used by a child process, peers -kernel, that loads each program once: if it hangs
// in the kernel, only its own figures are missing. The kernel must see the end of every loop, so
// long programs have fewer rounds, for all contenders alike.
//
// It is a module of its own because the peers are not part of the product.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"margay/nimble/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// flags are what the command line says.
type flags struct {
	plan           bench.Plan
	json, markdown string
	kernel         bool // be the child
	programs       []string
}

func parse(args []string, stderr io.Writer) (f flags, err error) {
	set := flag.NewFlagSet("peers", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.IntVar(&f.plan.Rounds, "rounds", 9, "how often each is measured")
	set.DurationVar(&f.plan.Turn, "turn", 20*time.Millisecond, "how long each is measured in a round, at least")
	set.BoolVar(&f.kernel, "kernel", false, "run programs in the kernel for another process of this program")
	set.StringVar(&f.json, "json", "", "write the figures to this `file`, for programs")
	set.StringVar(&f.markdown, "markdown", "", "write the figures to this `file`, for documents")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	f.programs = set.Args()
	for _, name := range f.programs {
		if _, err := bench.Find(name); err != nil {
			return f, err
		}
	}
	return f, nil
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	f, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if f.kernel {
		return serveKernel(stdin, stdout)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	all, end, err := contenders(ctx, self, "-kernel")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	r := newReport(f.plan.Rounds)
	programs := bench.Programs()
	for i := range programs {
		p := &programs[i]
		if len(f.programs) > 0 && !slices.Contains(f.programs, p.Name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, p.About)
		r.add(p, all, p.Measure(all, f.plan))
	}
	return errors.Join(r.writeTable(stdout), write(f.json, r.writeJSON), write(f.markdown, r.writeMarkdown))
}

// write writes a file, if it has a name.
func write(name string, content func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(content(file), file.Close())
}

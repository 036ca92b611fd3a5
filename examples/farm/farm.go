// Command farm runs a program once for each line of standard input, as a job of one rank with the
// words of the line as arguments, on as many cores as the machine has.
//
//	seq 100 | farm ./work
//
// The output of a job is printed when the job has ended. A line that fails is tried once more, and
// named at the end. Ctrl-C ends all jobs.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"

	"margay/lib/jobs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := farm(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "farm:", err)
		os.Exit(1)
	}
}

func farm(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return fmt.Errorf("the program is missing: farm PROGRAM [ARGUMENT...] <LINES")
	}
	program, err := jobs.Load(command[0])
	if err != nil {
		return err
	}
	machine, err := jobs.Connect(ctx, "")
	if err != nil {
		return err
	}
	defer machine.Close()
	var running sync.WaitGroup
	var printing sync.Mutex
	all, failed := 0, 0
	lines := bufio.NewScanner(os.Stdin)
	for ; lines.Scan(); all++ {
		line := lines.Text()
		running.Go(func() {
			out, err := work(ctx, machine, program, append(command[1:len(command):len(command)], strings.Fields(line)...))
			printing.Lock()
			defer printing.Unlock()
			os.Stdout.Write(out)
			if err != nil {
				failed++
				fmt.Fprintf(os.Stderr, "farm: %s: %v\n", line, err)
			}
		})
	}
	running.Wait()
	if err := lines.Err(); err != nil || failed == 0 {
		return err
	}
	return fmt.Errorf("%d of %d lines failed", failed, all)
}

// work runs one job, twice if it fails.
func work(ctx context.Context, machine *jobs.Machine, program *jobs.Program, words []string) (out []byte, err error) {
	for range 2 {
		var output bytes.Buffer
		_, err = machine.Run(ctx, jobs.Spec{Program: program, Args: words, Wait: jobs.Forever, Stdout: &output, Stderr: os.Stderr})
		if out = output.Bytes(); err == nil || ctx.Err() != nil {
			break
		}
	}
	return out, err
}

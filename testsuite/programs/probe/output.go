package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// count N PAUSE_MS prints numbered lines to both streams. If N is 0, it does so until SIGUSR1, and
// then prints their number.
func count(args []string) error {
	enough := make(chan os.Signal, 1)
	signal.Notify(enough, unix.SIGUSR1)
	n, i := number(args, 0, 10), 0
	for ; i < n || n == 0 && len(enough) == 0; i++ {
		fmt.Printf("out %s %d\n", rank(), i)
		fmt.Fprintf(os.Stderr, "err %s %d\n", rank(), i)
		time.Sleep(time.Duration(number(args, 1, 0)) * time.Millisecond)
	}
	if n == 0 {
		fmt.Printf("rank %s printed %d lines\n", rank(), i)
	}
	return nil
}

// late lets rank 0 leave a child behind that writes after a second, while rank 1 runs, and then
// goes on for an hour.
func late(args []string) error {
	if len(args) > 0 {
		time.Sleep(time.Second)
		fmt.Printf("child of rank %s\n", rank())
		time.Sleep(time.Hour)
	}
	if rank() != "0" {
		time.Sleep(4 * time.Second)
		return nil
	}
	child := exec.Command("/proc/self/exe", "late", "child")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	return child.Start()
}

// write FILE... writes to files.
func write(files []string) error {
	for _, name := range files {
		if err := os.WriteFile(name, []byte(rank()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// wide N prints numbered lines of more than 40 bytes as fast as it can, each in one piece.
func wide(args []string) error {
	for i := range number(args, 0, 10) {
		if _, err := fmt.Printf("out %s %d %s\n", rank(), i, strings.Repeat(".", 30)); err != nil {
			return err
		}
	}
	return nil
}

// spew BYTES prints so many bytes, in numbered lines of 16. The last line may be shorter.
func spew(args []string) error {
	out := bufio.NewWriter(os.Stdout)
	for left, i := number(args, 0, 0), 0; left > 0; i++ {
		line := fmt.Sprintf("%015d\n", i)
		n := min(left, len(line))
		if _, err := out.WriteString(line[:n]); err != nil {
			return err
		}
		left -= n
	}
	return out.Flush()
}

// long BYTES prints two lines of so many digits, its rank's.
func long(args []string) error {
	line := strings.Repeat(rank(), number(args, 0, 0)) + "\n"
	for range 2 {
		if _, err := os.Stdout.WriteString(line); err != nil {
			return err
		}
	}
	return nil
}

// stdin counts the lines and bytes of standard input.
func stdin([]string) error {
	in := bufio.NewReader(os.Stdin)
	lines, bytes := 0, 0
	for {
		line, err := in.ReadString('\n')
		bytes += len(line)
		if err == io.EOF {
			fmt.Printf("rank %s read %d lines, %d bytes\n", rank(), lines, bytes)
			return nil
		}
		if err != nil {
			return err
		}
		lines++
	}
}

// read FILE prints the size and the first line of a file.
func read(args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	fmt.Printf("rank %s: %d bytes, first line %q\n", rank(), len(text), first)
	return nil
}

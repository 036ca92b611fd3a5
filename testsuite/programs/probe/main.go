// Command probe is what end-to-end tests run on nodes. Its first argument says what it does.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var commands = map[string]func(args []string) error{
	"hello":     hello,
	"exit":      exit,
	"share":     share,
	"count":     count,
	"late":      late,
	"write":     write,
	"wide":      wide,
	"spew":      spew,
	"long":      long,
	"stdin":     stdin,
	"signals":   signals,
	"sleep":     sleep,
	"read":      read,
	"fill":      fill,
	"eat":       eat,
	"fork":      fork,
	"kill":      killAll,
	"snoop":     snoop,
	"island":    island,
	"barrier":   barrier,
	"threads":   threads,
	"leave":     leave,
	"meet":      meet,
	"pingpong":  pingpong,
	"sift":      sift,
	"pmi":       speakPMI,
	"network":   listenOnNetwork,
	"insert":    insert,
	"extension": extension,
	"hog":       hog,
	"compose":   compose,
	"orphan":    orphan,
	"affinity":  affinity,
	"compute":   compute,
	"touch":     touch,
	"pointers":  pointers,
	"spread":    spread,
	"upcalls":   upcalls,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "probe: no such command:", os.Args[1:])
		os.Exit(2)
	}
	var cancel context.CancelFunc
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func rank() string { return os.Getenv("MARGAY_RANK") }

func number(args []string, at, otherwise int) int {
	if at >= len(args) {
		return otherwise
	}
	n, err := strconv.Atoi(args[at])
	if err != nil {
		panic(err)
	}
	return n
}

// hello [WORD...] prints what the process finds around it.
func hello(args []string) error {
	dir, err := os.Getwd()
	umask := unix.Umask(0)
	host, _ := os.Hostname()
	fmt.Printf("rank %s of %s on %s uid %d dir %s umask %03o env %s args %q\n", rank(), os.Getenv("MARGAY_SIZE"), host, os.Getuid(),
		dir, umask, os.Getenv("PROBE_ENV"), args)
	return err
}

// exit CODE [RANK] ends with a status, in one rank or in all.
func exit(args []string) error {
	if len(args) > 1 && args[1] != rank() {
		time.Sleep(time.Hour)
	}
	os.Exit(number(args, 0, 0))
	return nil
}

// signals prints the signals that come, until SIGTERM.
func signals([]string) error {
	c := make(chan os.Signal, 16)
	signal.Notify(c, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGQUIT, unix.SIGTERM)
	fmt.Println("ready", rank())
	for s := range c {
		fmt.Println("rank", rank(), "got", unix.SignalName(s.(syscall.Signal)))
		if s == unix.SIGTERM {
			return nil
		}
	}
	return nil
}

// sleep [SECONDS] [stubborn] waits; stubborn, it ignores what asks it to end.
func sleep(args []string) error {
	if len(args) > 1 {
		signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	}
	fmt.Println("sleeping", rank())
	time.Sleep(time.Duration(number(args, 0, 3600)) * time.Second)
	return nil
}

// island ADDRESS... tries to reach addresses, and prints those that answer.
func island(args []string) error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if i.Name != "lo" {
			fmt.Println("CAN use interface", i.Name)
		}
	}
	for _, address := range args {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			fmt.Println("CAN reach", address)
			c.Close()
		}
	}
	return nil
}

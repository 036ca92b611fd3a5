package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
	"margay/qemu/console"
)

// The console of a node is followed when its file is rotated.
func TestFollowRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "console")
		log, err := console.New(console.Config{Path: path, MaxBytes: 64})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		var got, want bytes.Buffer
		out := io.MultiWriter(log, &want)
		fmt.Fprintln(out, "first")
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		go copyFollowing(t.Context(), &got, f, func() error { return nil })
		for i := range 20 {
			fmt.Fprintf(out, "line %d\n", i)
			if i%3 == 0 {
				time.Sleep(2 * followPause)
			}
		}
		time.Sleep(2 * followPause)
		synctest.Wait()
		if got.String() != want.String() {
			t.Errorf("%q", got.String())
		}
		if files, err := filepath.Glob(path + "*"); err != nil || len(files) != 2 || strings.Count(want.String(), "\n") != 21 {
			t.Errorf("%v: %v", files, err)
		}
	})
}

// A console that is followed ends with its machine, whose folder is removed, and nothing is left out of what it had written.
func TestFollowConsoleOfMachineGoingDown(t *testing.T) {
	m := playMachine(t, "m", func(*control.Conn, *control.Frame) {})
	dir := filepath.Join(m.base, m.name)
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	console, err := os.Create(filepath.Join(dir, "log", "node1.console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	fmt.Fprintln(console, "first")
	p := shell(t, `exec "$0" machine console 1 --follow >"$OUT"`)
	out := filepath.Join(t.TempDir(), "out")
	p.Env = append(p.Env, "OUT="+out)
	p.start()
	shown := func() string {
		text, _ := os.ReadFile(out)
		return string(text)
	}
	awaitText(t, shown, "first\n")
	fmt.Fprintln(console, "last")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	wants(t, p.status(), 125, p.stderr.String(), "margay: machine m: there is no such machine")
	if shown() != "first\nlast\n" {
		t.Errorf("it shows %q", shown())
	}
}

// What looks at a machine twice does not wait for the second look when the machine goes down.
func TestIntervalOfMachineGoingDown(t *testing.T) {
	for _, command := range []string{"top --once --interval 1h", "top --interval 1h", "ext stats --interval 1h"} {
		t.Run(command, func(t *testing.T) {
			m := playMachine(t, "m", func(c *control.Conn, f *control.Frame) {
				switch f.Message().(type) {
				case *control.TakeSamples:
					c.Answer(f, &control.Samples{}, nil)
				case *control.ListExtensions:
					c.Answer(f, &control.Extensions{}, nil)
				}
			})
			p := shell(t, `exec "$0" `+command).start()
			for deadline := time.Now().Add(patience); m.connected() < 2; time.Sleep(time.Millisecond) { // the second one waits
				if time.Now().After(deadline) {
					t.Fatal("nothing waits for the end of the machine")
				}
			}
			m.down()
			wants(t, p.status(), 125, p.stderr.String(), "margay: the machine goes down\n")
		})
	}
}

// What cannot be written is no success.
func TestStatusThatCannotBeWritten(t *testing.T) {
	playMachine(t, "m", func(c *control.Conn, f *control.Frame) { c.Answer(f, &control.MachineStatus{Machine: "m"}, nil) })
	var stderr bytes.Buffer
	status := run(t.Context(), []string{"machine", "status"}, strings.NewReader(""), full{}, &stderr)
	wants(t, status, 125, stderr.String(), errFull.Error())
}

package symbol

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/internal/check"
	"margay/kernel/stack"
)

// waiting is a program with five goroutines that wait, the first one of them.
const waiting = `package main

import (
	"fmt"
	"time"
)

func worker(c chan int) { <-c }

func main() {
	c := make(chan int)
	for range 4 {
		go worker(c)
	}
	fmt.Println("here")
	time.Sleep(time.Hour)
}
`

func readGo(pid int, l *control.GoLayout) (p *stack.Process, err error) {
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread traces, and ends with this goroutine
		p, err = stack.Read(pid, nil, stack.GoLayout{
			Path: l.File.Path, Build: l.File.Build, All: l.All, SP: l.Sp, PC: l.Pc, BP: l.Bp, Status: l.Status,
		})
	}()
	<-done
	return p, err
}

func TestGoroutines(t *testing.T) {
	dir := t.TempDir()
	source, program := filepath.Join(dir, "waiting.go"), filepath.Join(dir, "waiting")
	if err := os.WriteFile(source, []byte(waiting), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "here\n" {
		t.Fatalf("it writes %q, %v", line, err)
	}
	table := NewTable()
	defer table.Close()
	_, id := addressOf(t, program, "main.main")
	layout := table.GoLayout(&control.CodeFile{Path: program, Build: id})
	if layout == nil {
		t.Fatal("the goroutines are not found")
	}
	if l := table.GoLayout(&control.CodeFile{Path: "/bin/true"}); l != nil {
		t.Errorf("a program of C has %v", l)
	}
	check.Await(t, "the goroutines to wait", func() bool {
		p, err := readGo(cmd.Process.Pid, layout)
		if err != nil {
			t.Fatal(err)
		}
		workers, first := 0, false
		for _, threads := range p.Threads {
			if !threads.Goroutine {
				continue
			}
			var names []string
			for _, f := range threads.Stack {
				for _, place := range table.Places(program, id, f.Addr) {
					names = append(names, place.Function)
				}
			}
			stack := strings.Join(names, " ")
			switch {
			case strings.Contains(stack, "runtime.gopark") && strings.Contains(stack, "runtime.chanrecv1 main.worker"):
				workers += threads.Count
			case strings.Contains(stack, "main.main runtime.main"):
				first = threads.Main && threads.Count == 1
			}
		}
		return workers == 4 && first
	})
}

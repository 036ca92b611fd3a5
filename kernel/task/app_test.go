package task_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// app is what the jobs of these tests run.
func app(args []string) int {
	switch args[0] {
	case "hello":
		fmt.Printf("hello from %d\n", os.Getpid())
		fmt.Fprintf(os.Stderr, "uid %d\n", os.Getuid())
		return 7
	case "cat":
		io.Copy(os.Stdout, os.Stdin)
	case "sleep":
		fmt.Println("sleeping")
		time.Sleep(time.Hour)
	case "flood":
		for i := range 200000 {
			fmt.Println("line", i)
		}
	case "status":
		text, err := os.ReadFile("/proc/self/status")
		fmt.Print(string(text))
		if err != nil {
			fmt.Println(err)
		}
	case "surroundings":
		surroundings()
	case "eat":
		eat()
	case "fork":
		fork()
	case "orphan":
		return orphan()
	case "fill":
		fill()
	case "touch":
		eaten = append(eaten, make([]byte, touched))
		for i := 0; i < touched; i += 4096 {
			eaten[0][i] = 1
		}
	}
	return 0
}

// surroundings says what a rank sees of the node.
func surroundings() {
	for _, kind := range namespaces {
		name, err := os.Readlink("/proc/self/ns/" + kind)
		fmt.Println(name, err)
	}
	for _, pattern := range []string{"/*", "/proc/[0-9]*", "/dev/*"} {
		names, err := filepath.Glob(pattern)
		fmt.Println(names, err)
	}
	name, err := os.Hostname()
	fmt.Println("host", name, err)
	interfaces, err := net.Interfaces()
	for _, i := range interfaces {
		fmt.Println("interface", i.Name, i.Flags&net.FlagUp != 0)
	}
	fmt.Println("interfaces", len(interfaces), err)
	time.Sleep(time.Hour)
}

// eat takes memory until there is no more. Only rank 0 does, the others look on.
func eat() {
	fmt.Println("eating")
	for os.Getenv("MARGAY_RANK") == "0" {
		piece := make([]byte, 1<<20)
		for i := 0; i < len(piece); i += 4096 {
			piece[i] = 1
		}
		eaten = append(eaten, piece)
	}
	time.Sleep(time.Hour)
}

var eaten [][]byte

// touched is how much memory touch touches.
const touched = 16 << 20

// fork starts processes until it may not.
func fork() {
	for n := 0; ; n++ {
		if err := exec.Command("/proc/self/exe", "app", "sleep").Start(); err != nil {
			fmt.Printf("%d started: %v\n", n, err)
			time.Sleep(time.Hour)
		}
	}
}

// orphan leaves a process in a session of its own and ends.
func orphan() int {
	cmd := exec.Command("/proc/self/exe", "app", "sleep")
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// fill writes a file until there is no room.
func fill() {
	f, err := os.Create("file")
	if err != nil {
		fmt.Println(err)
		return
	}
	total := 0
	piece := []byte(strings.Repeat("x", 64<<10))
	for {
		n, err := f.Write(piece)
		total += n
		if err != nil {
			fmt.Printf("%d written: %v\n", total, err)
			return
		}
	}
}

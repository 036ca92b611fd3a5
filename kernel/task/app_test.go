package task_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/hardware"
)

// app is what the jobs of these tests run.
func app(args []string) int {
	switch args[0] {
	case "hello":
		fmt.Printf("hello from %d\n", os.Getpid())
		fmt.Fprintf(os.Stderr, "uid %d\n", os.Getuid())
		return 7
	case "code": // tries to change its own program
		if os.Truncate("/bin/app", 0) == nil {
			fmt.Println("it is empty now")
		}
		fmt.Println(errors.Join(os.Chmod("/bin/app", 0o777), os.Remove("/bin/app"), os.Rename("/bin/app", "/bin/b")))
		var st unix.Stat_t
		if err := unix.Stat("/bin/app", &st); err != nil {
			fmt.Println(err)
		}
		fmt.Println("inode", st.Dev, st.Ino)
	case "cat":
		io.Copy(os.Stdout, os.Stdin)
	case "reopen": // copies what it reads, by streams that it opens by name
		names := [3]string{"in", "out", "err"}
		if strings.HasSuffix(args[1], "/") {
			names = [3]string{"0", "1", "2"}
		}
		var text []byte
		for i, name := range names {
			f, err := os.OpenFile(args[1]+name, []int{os.O_RDONLY, os.O_WRONLY, os.O_WRONLY}[i], 0)
			if err == nil && i == 0 {
				text, err = io.ReadAll(f)
			} else if err == nil {
				_, err = f.Write(text)
			}
			if err != nil {
				fmt.Print(err)
				return 1
			}
		}
	case "raw cat": // which does not read again when a system call was interrupted, as os.File does
		for buf := make([]byte, 512); ; {
			n, err := unix.Read(0, buf)
			if err != nil {
				fmt.Print("read: ", err)
				return 1
			}
			if n == 0 {
				return 0
			}
			if _, err := unix.Write(1, buf[:n]); err != nil {
				return 1
			}
		}
	case "sleep":
		fmt.Println("sleeping")
		time.Sleep(time.Hour)
	case "flood":
		out := bufio.NewWriter(os.Stdout)
		for i := range flooded {
			fmt.Fprintln(out, "line", i)
		}
		if err := out.Flush(); err != nil {
			return 1
		}
	case "status":
		text, err := os.ReadFile("/proc/self/status")
		fmt.Print(string(text))
		if err != nil {
			fmt.Println(err)
		}
		fmt.Print("TimerSlack:\t")
		fmt.Println(unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0))
		fmt.Printf("HugePagesDeclined:\t%v\n", hardware.HugePagesDeclined())
	case "strings":
		fmt.Print(digest(os.Args), digest(os.Environ()))
	case "surroundings":
		surroundings()
	case "eat":
		if err := eat(); err != nil {
			fmt.Fprintln(os.Stderr, "eat:", err)
			return 1
		}
	case "fork":
		fork()
	case "orphan":
		return orphan()
	case "fill":
		fill()
	case "crowd":
		for _, dir := range args[1:] {
			crowd(dir)
		}
	case "leave":
		return leave(args[1])
	case "look":
		look()
	case "touch":
		memory := make([]byte, touched)
		for i := 0; i < touched; i += 4096 {
			memory[i] = 1
		}
	}
	return 0
}

// flooded is how many lines flood writes: more than a node holds of a rank's output.
const flooded = 200000

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

// eat allocates memory until none is left, on rank 0 only. It allocates from Linux directly and
// frees a reserve at the end, because Go crashes when it gets no memory, and takes several MiB at
// once.
func eat() error {
	fmt.Println("eating")
	if os.Getenv("MARGAY_RANK") != "0" {
		time.Sleep(time.Hour)
	}
	reserve, err := unix.MmapPtr(-1, 0, nil, 16*piece, unix.PROT_WRITE, populated)
	for err == nil {
		_, err = unix.MmapPtr(-1, 0, nil, piece, unix.PROT_WRITE, populated)
	}
	return errors.Join(err, unix.MunmapPtr(reserve, 16*piece))
}

// What eat takes at once.
const (
	piece     = 1 << 20
	populated = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE
)

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

// crowd fills a folder with bytes and then with files, up to what the environment gives as the
// most.
func crowd(dir string) {
	most, err := strconv.ParseInt(os.Getenv("MOST"), 10, 64)
	if err != nil {
		fmt.Println(err)
		return
	}
	bytes, err := os.Create(filepath.Join(dir, "bytes"))
	piece := make([]byte, 64<<10)
	for n := int64(0); err == nil && n <= most; n += int64(len(piece)) {
		_, err = bytes.Write(piece)
	}
	fmt.Println("full:", errors.Unwrap(err))
	if err := errors.Join(bytes.Close(), os.Remove(bytes.Name())); err != nil {
		fmt.Println(err)
	}
	err = nil
	for n := int64(0); err == nil && n <= most/4096; n++ {
		var f *os.File
		if f, err = os.Create(filepath.Join(dir, fmt.Sprint(n))); err == nil {
			f.Close()
		}
	}
	fmt.Println("no more files:", errors.Unwrap(err))
}

// digest is what a rank of the application "strings" says of its arguments or its environment.
func digest(list []string) string {
	return fmt.Sprintf("%d %x\n", len(list), sha256.Sum256([]byte(strings.Join(list, "\x00"))))
}

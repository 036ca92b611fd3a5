package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// client speaks PMI 1 as bare lines.
type client struct {
	conn       *os.File
	lines      *bufio.Reader
	rank, size int
}

func newClient() (*client, error) {
	fd, err1 := strconv.Atoi(os.Getenv("PMI_FD"))
	rank, err2 := strconv.Atoi(os.Getenv("PMI_RANK"))
	size, err3 := strconv.Atoi(os.Getenv("PMI_SIZE"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "PMI")
	return &client{f, bufio.NewReader(f), rank, size}, nil
}

// ask sends a line and demands that the answer begins so.
func (c *client) ask(line, want string) error {
	if _, err := c.conn.WriteString(line + "\n"); err != nil {
		return err
	}
	answer, err := c.lines.ReadString('\n')
	if strings.HasPrefix(answer, "cmd=barrier_out rc=-1 ") {
		fmt.Print(answer)
		return sleep(nil) // the job ends with the status of the rank that has ended
	}
	if err == nil && !strings.HasPrefix(answer, want) {
		err = fmt.Errorf("%.60q is answered by %q, want %q", line, answer, want)
	}
	return err
}

// exchange lets each rank put its number, and get all ranks' numbers.
func (c *client) exchange(round int) error {
	err := c.put(round)
	if err == nil {
		err = c.ask("cmd=barrier_in", "cmd=barrier_out rc=0 ")
	}
	for r := 0; r < c.size && err == nil; r++ {
		err = c.ask(fmt.Sprintf("cmd=get kvsname=job-%s key=k%d-%d", os.Getenv("MARGAY_JOB"), round, r), fmt.Sprintf("cmd=get_result rc=0 msg=success value=%d\n", r))
	}
	return err
}

// put puts this rank's key of a round.
func (c *client) put(round int) error {
	return c.ask(fmt.Sprintf("cmd=put kvsname=job-%s key=k%d-%d value=%d", os.Getenv("MARGAY_JOB"), round, c.rank, c.rank), "cmd=put_result rc=0 ")
}

// speakPMI TASK lets the ranks find each other. TASK is the additional task of rank 1: "bad" sends
// invalid commands, "before", "in" and "after" exit with status 3 then, "silent" writes a line and
// ends well without a finalize, "abort" asks for the end of the job, "late" waits for SIGUSR1
// before it enters the barrier, "limit" waits for SIGTERM and ends well, "flood" asks and reads no
// answer.
func speakPMI(args []string) error {
	c, err := newClient()
	if err != nil {
		return err
	}
	if err := c.ask("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=0 "); err != nil {
		return err
	}
	if c.rank == 1 {
		if err := c.misbehave(args[0]); err != nil {
			return err
		}
	}
	if c.rank == 0 && args[0] == "flood" {
		if err := c.served(); err != nil {
			return err
		}
	}
	for round := range 3 {
		if err := c.exchange(round); err != nil {
			return err
		}
	}
	if c.rank == 1 && args[0] == "after" {
		os.Exit(3)
	}
	if err := c.ask("cmd=barrier_in", "cmd=barrier_out rc=0 "); err != nil {
		return err
	}
	fmt.Println("exchanged")
	return c.ask("cmd=finalize", "cmd=finalize_ack rc=0")
}

// misbehave does what rank 1 does before its first barrier.
func (c *client) misbehave(what string) error {
	switch what {
	case "bad":
		return c.bad()
	case "before":
		os.Exit(3)
	case "in":
		if err := c.put(0); err != nil { // the others would miss it, and might say so before this rank has ended
			return err
		}
		_, err := c.conn.WriteString("cmd=barrier_in\n")
		fmt.Println("in the barrier:", err)
		os.Exit(3)
	case "silent":
		fmt.Print(strings.Repeat("the last words\n", 2000))
		os.Exit(0)
	case "abort":
		fmt.Println("aborts")
		_, err := c.conn.WriteString("cmd=abort exitcode=7\n")
		return errors.Join(err, sleep(nil))
	case "late", "limit", "flood":
		got := make(chan os.Signal, 1)
		signal.Notify(got, unix.SIGUSR1, unix.SIGTERM)
		fmt.Println("waits")
		if what == "flood" {
			if err := c.flood(); err != nil {
				return err
			}
			fmt.Println("full")
		}
		if <-got; what == "limit" {
			os.Exit(0)
		}
	}
	return nil
}

// served asks when SIGUSR1 comes, while rank 1 floods.
func (c *client) served() error {
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGUSR1)
	fmt.Println("ready")
	<-got
	err := c.ask("cmd=get_appnum", "cmd=appnum rc=0 ")
	fmt.Println("served")
	return err
}

// bad sends invalid commands of all kinds, and demands an error for each.
func (c *client) bad() error {
	const failed = "cmd=error rc=-1 "
	ten := strings.Repeat("x", 10<<20)
	for _, try := range []struct{ line, want string }{
		{"", failed}, {"garbage", failed}, {"= =\x00\xff", failed}, {"cmd=", failed}, {ten, failed}, {"cmd=get key=" + ten, failed},
		{"cmd=dance", "cmd=dance_result rc=-1 "},
		{"cmd=get kvsname=other key=PMI_process_mapping", "cmd=get_result rc=-1 "},
		{"cmd=put kvsname=other key=k value=v", "cmd=put_result rc=-1 "},
		{"mcmd=spawn\nnprocs=1\nexecname=x\nendcmd", "cmd=spawn_result rc=-1 "},
		{"cmd=lookup_name service=s", "cmd=lookup_result info=error rc=-1 "},
		{"cmd=publish_name service=s port=p", "cmd=publish_result info=ok rc=0 "},
		{"cmd=publish_name service=s port=p", "cmd=publish_result info=error rc=-1 "},
		{"cmd=lookup_name service=s", "cmd=lookup_result port=p info=ok rc=0 "},
		{"cmd=unpublish_name service=s", "cmd=unpublish_result info=ok rc=0 "},
	} {
		if err := c.ask(try.line, try.want); err != nil {
			return err
		}
	}
	// Two halves are one line.
	if _, err := c.conn.WriteString("cmd=get_ap"); err != nil {
		return err
	}
	time.Sleep(10 * time.Millisecond)
	return c.ask("pnum", "cmd=appnum rc=0 appnum=0")
}

// flood sends lines and reads no answer until no byte is taken for a second.
func (c *client) flood() error {
	fd := int(c.conn.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	lines := bytes.Repeat([]byte("cmd=get_appnum\n"), 1000)
	for refused, sent := 0, 0; refused < 100; {
		n, err := unix.Write(fd, lines[sent:])
		switch {
		case err == unix.EAGAIN:
			refused++
			time.Sleep(10 * time.Millisecond)
		case err != nil:
			return err
		default:
			refused, sent = 0, (sent+n)%len(lines)
		}
	}
	return nil
}

// listenOnNetwork prints the packets to port 9999 of the job's network on rank 1, until SIGUSR1.
// Then rank 0, which waits for the signal too, has sent a word there by the name of rank 1's node.
func listenOnNetwork([]string) error {
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGUSR1)
	if rank() == "0" {
		fmt.Println("job", os.Getenv("MARGAY_JOB"))
		<-got
		conn, err := net.Dial("udp4", "node1:9999")
		if err == nil {
			_, err = conn.Write([]byte("end"))
		}
		return err
	}
	conn, err := net.ListenPacket("udp4", "0.0.0.0:9999")
	if err != nil {
		return err
	}
	fmt.Println("listens")
	buf := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		fmt.Printf("%.20q from %v\n", buf[:n], from.(*net.UDPAddr).IP)
		if string(buf[:n]) == "end" {
			return nil
		}
	}
}

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/message/accumulate"
	"margay/kernel/abi/wire"
	"margay/lib/margay"
)

// attacker is a rank that speaks with its node kernel without its library, too.
type attacker struct {
	job      *margay.Job
	socket   *net.UnixConn
	area     []byte // mapped once more
	doorbell *os.File
	victim   uint32 // handle of an extension of another job
	other    uint32 // a handle that no extension has
	object   *os.File
}

// newAttacker takes part in the job.
func newAttacker() (*attacker, error) {
	fd, err := unix.FcntlInt(wire.FD, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "socket")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return nil, err
	}
	a := &attacker{socket: conn.(*net.UnixConn)}
	if a.job, err = margay.Init(); err != nil {
		return nil, err
	}
	_, files, err := a.ask(encoded(wire.Request{Op: wire.OpHello, Value: wire.Version}))
	if err != nil {
		return nil, err
	}
	a.doorbell = files[1]
	a.area, err = unix.Mmap(int(files[0].Fd()), 0, wire.AreaSize(a.job.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return a, err
}

func encoded(q wire.Request) []byte {
	b, err := q.Encode()
	if err != nil {
		panic(err)
	}
	return b
}

// ask sends any bytes as a request, with files, and returns the answer. A refusal is an error.
func (a *attacker) ask(request []byte, give ...*os.File) (wire.Reply, []*os.File, error) {
	var fds []int
	for _, f := range give {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := a.socket.WriteMsgUnix(request, rights, nil); err != nil {
		return wire.Reply{}, nil, err
	}
	a.socket.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf, oob := make([]byte, wire.ReplySize), make([]byte, unix.CmsgSpace(4*8))
	n, oobn, _, _, err := a.socket.ReadMsgUnix(buf, oob)
	if err != nil {
		return wire.Reply{}, nil, err
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "answer"))
		}
	}
	reply, derr := wire.DecodeReply(buf[:n])
	if err := errors.Join(err, derr); err != nil {
		return reply, files, err
	}
	if reply.Status != wire.StatusOK {
		return reply, files, fmt.Errorf("status %d: %s", reply.Status, reply.Text)
	}
	return reply, files, nil
}

// attackNode HANDLE CALLER asks the node kernel for an extension of another job, the one with that
// handle. CALLER is the file of an extension that calls it.
func attackNode(args []string) error {
	handle, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	a, err := newAttacker()
	if err != nil {
		return err
	}
	a.victim, a.other = uint32(handle), 1<<32-1
	fd, err := unix.MemfdCreate("object", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	a.object = os.NewFile(uintptr(fd), "object")
	if _, err := a.object.Write(accumulate.Object); err != nil {
		return err
	}
	attempt(a.requests())
	attempt(a.nonsense())
	attempt([]try{
		{"call the victim's extension", func() error { return a.call(args[1]) }},
		{"send in the name of another", a.forge},
		{"shrink what the node kernel maps", a.shrink},
	})
	return a.job.Finalize(context.Background())
}

func (a *attacker) requests() []try {
	request := func(name string, q wire.Request, give ...*os.File) try {
		return try{name, func() error { _, _, err := a.ask(encoded(q), give...); return err }}
	}
	insert := func(name, slot string, settings ...wire.Setting) try {
		return request(name, wire.Request{Op: wire.OpInsert, Name: "attack", Where: slot, Settings: settings}, a.object)
	}
	return []try{
		insert("insert a trusted extension", "", wire.Setting{Kind: wire.SetTrusted}),
		insert("insert into slot boot", "boot"),
		insert("insert into slot trap", "trap"),
		insert("insert into no slot", "victim/message"),
		insert("set a variable that does not exist", "", wire.Setting{Kind: wire.SetConstant, Name: "victim", Value: 1}),
		insert("set more entries than there is memory", "", wire.Setting{Kind: wire.SetEntries, Name: accumulate.Table, Value: 1 << 26}),
		request("forge a name", wire.Request{Op: wire.OpInsert, Name: "x\nmargay: all is well\x1b[2J"}, a.object),
		request("remove the victim's extension", wire.Request{Op: wire.OpRemove, Handle: a.victim}),
		request("read the victim's statistics", wire.Request{Op: wire.OpStats, Handle: a.victim}),
		request("read the victim's state", wire.Request{Op: wire.OpState, Handle: a.victim, Name: accumulate.Table}),
		request("read the victim's region", wire.Request{Op: wire.OpRegion, Name: victimRegion}),
		request("make a region of all memory", wire.Request{Op: wire.OpRegion, Name: "all", Value: 1 << 60}),
		request("fetch a channel that is not", wire.Request{Op: wire.OpChannel, Value: 1 << 40}),
		request("take the doorbell of no rank", wire.Request{Op: wire.OpDoorbell, Value: 7}),
		request("remove an extension that is not", wire.Request{Op: wire.OpRemove, Handle: a.other}),
		request("remove extension 0", wire.Request{Op: wire.OpRemove}),
	}
}

// nonsense is requests that make no sense.
func (a *attacker) nonsense() []try {
	raw := func(name string, b []byte, give ...*os.File) try {
		return try{name, func() error { _, _, err := a.ask(b, give...); return err }}
	}
	many := encoded(wire.Request{Op: wire.OpInsert})
	many[12] = 200
	pipe, _, _ := os.Pipe()
	insert := encoded(wire.Request{Op: wire.OpInsert})
	return []try{
		raw("ask in 3 bytes", []byte{1, 2, 3}),
		raw("ask in too many bytes", make([]byte, wire.MaxRequest+1)),
		raw("make an unknown request", encoded(wire.Request{Op: 4242})),
		raw("ask with settings that are not there", many),
		raw("insert nothing", insert),
		raw("insert a pipe", insert, pipe),
		raw("insert three files", insert, a.object, a.object, a.object),
	}
}

// call has an extension call the victim's. It drops the message that it gets when the call fails.
func (a *attacker) call(file string) error {
	object, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	x, err := a.job.Insert(margay.ExtensionSpec{Name: "caller", Object: object, Constants: map[string]uint64{"helper": uint64(a.victim)}})
	if err != nil {
		return err
	}
	called := false
	a.job.Handle(1, func(margay.Message) { called = true })
	a.job.Handle(2, func(margay.Message) {})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for handler, arg := range map[int]uint64{1: 2, 2: 0} {
		if err := a.job.Send(ctx, a.job.Rank(), handler, [2]uint64{arg}, nil); err != nil {
			return err
		}
	}
	for s := (margay.Stats{}); s.Runs < 2; {
		if s, err = x.Stats(); err != nil {
			return err
		}
	}
	if _, err := a.job.Wait(ctx); err != nil {
		return err
	}
	if a.job.Poll(); called {
		return nil
	}
	return errors.New("its handle is none in this job")
}

// Where the area's header says what the rank is (package wire).
const headerJob, headerEnd = 8, 36

// forge writes another rank, node and job into the area, sends itself a message, and looks at its
// source.
func (a *attacker) forge() error {
	rank, node := a.job.Rank(), a.job.Node()
	kept := append([]byte(nil), a.area[headerJob:headerEnd]...)
	for i := headerJob; i < headerEnd; i++ {
		a.area[i] = 0x11
	}
	defer copy(a.area[headerJob:], kept)
	var got *margay.Message
	a.job.Handle(3, func(m margay.Message) { got = &m })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := a.job.Send(ctx, rank, 3, [2]uint64{}, nil); err != nil {
		return err
	}
	// The library has put 0 there; the node kernel has yet to look, or has looked.
	for got == nil {
		if _, err := a.job.Wait(ctx); err != nil {
			return err
		}
	}
	if got.Source != rank || got.Node != node {
		return nil
	}
	return errors.New("its source is true")
}

// shrink takes the memory away on which the node kernel works.
func (a *attacker) shrink() error {
	_, files, err := a.ask(encoded(wire.Request{Op: wire.OpHello, Value: wire.Version}))
	if err != nil {
		return err
	}
	return files[0].Truncate(0)
}

// attackRing writes nonsense into all of its area, and rings.
func attackRing([]string) error {
	a, err := newAttacker()
	if err != nil {
		return err
	}
	for i := range a.area {
		a.area[i] = 0xa5
	}
	if _, err := a.doorbell.Write([]byte{1}); err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return nil
}

// Where the area has the control block of the receive ring, and of its head (package wire).
const receiveControl, ringHead = 512, 64

// attackArea WHAT damages the area of rank 0 for the next node kernel: "shape", so that it is not
// an area any more, or "positions", so that the positions of its receive ring lie within records. A
// rank 1 sends rank 0 a message when it gets SIGUSR1.
func attackArea(args []string) error {
	signalled := make(chan os.Signal, 1)
	signal.Notify(signalled, unix.SIGUSR1)
	a, err := newAttacker()
	if err != nil {
		return err
	}
	if a.job.Rank() == 1 {
		fmt.Println("ready")
		<-signalled
		if err := a.job.Send(context.Background(), 0, 1, [2]uint64{}, nil); err != nil {
			return err
		}
		select {}
	}
	switch args[0] {
	case "shape":
		clear(a.area[:headerJob])
	case "positions":
		for _, at := range []int{receiveControl, receiveControl + ringHead} {
			binary.LittleEndian.PutUint64(a.area[at:], wire.RingSize-4)
		}
	}
	fmt.Println("damaged")
	select {}
}

// victimRegion is the name of a region of the victim.
const victimRegion = "secret"

// victim counts words, and keeps a region and a file, until SIGTERM. Then it prints whether they
// are unchanged.
func victim([]string) error {
	job, err := margay.Init()
	if err != nil {
		return err
	}
	if err := os.WriteFile("/tmp/victim", []byte("mine"), 0o644); err != nil {
		return err
	}
	region, err := job.Region(victimRegion, 4096)
	if err != nil {
		return err
	}
	copy(region.Bytes, strings.Repeat("secret", 600))
	x, err := job.Insert(margay.ExtensionSpec{Name: "victim", Object: accumulate.Object})
	if err != nil {
		return err
	}
	job.Handle(1, func(margay.Message) {})
	ended := endOf()
	fmt.Println("victim", x.Handle())
	ctx := context.Background()
	sent := uint64(0)
	for alive := true; alive; sent++ {
		if err := job.Send(ctx, job.Rank(), 0, [2]uint64{1}, []byte("word")); err != nil {
			return err
		}
		select {
		case <-ended:
			alive = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	totals, err := x.State(accumulate.Totals)
	if err != nil {
		return err
	}
	sums, err := accumulate.ReadSums(totals.Bytes)
	if err != nil {
		return err
	}
	s, err := x.Stats()
	if err != nil {
		return err
	}
	file, err := os.ReadFile("/tmp/victim")
	fmt.Println("messages counted:", sums.Handled == sent && sums.Sum == sent && s.Faults == 0, "all by one node kernel:", s.Runs == sent,
		"region whole:", string(region.Bytes[:3600]) == strings.Repeat("secret", 600), "file whole:", string(file) == "mine", err)
	return job.Finalize(ctx)
}

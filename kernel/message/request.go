package message

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/keep"
	"margay/nimble/memory"
	"margay/nimble/state"
)

// serve answers the requests of a rank until its socket is closed.
func (r *rank) serve() {
	buf := make([]byte, wire.MaxRequest+1)
	control := make([]byte, rights.Space(rights.Most))
	asking := &r.job.ledger.asking[r.index]
	if *asking != 0 {
		_ = r.reply(wire.Reply{Call: uint32(*asking - 1), Status: wire.StatusAgain, Text: "the node kernel was started again before it answered"}, nil)
		*asking = 0
	}
	for {
		call, err := r.nextCall()
		if err != nil {
			return
		}
		// Whoever takes this node kernel's place will know whom it owes an answer.
		*asking = 1 + uint64(call)
		n, oobn, _, _, err := r.socket.ReadMsgUnix(buf, control)
		if err != nil || n == 0 {
			return
		}
		files := received(control[:oobn])
		request, err := wire.DecodeRequest(buf[:n])
		reply := wire.Reply{Status: wire.StatusInvalid}
		var give []*os.File
		if err == nil {
			reply, give, err = r.do(request, files)
			reply.Call = request.Call
		}
		if err != nil {
			reply.Text = err.Error()
			r.complain(request, reply.Status, err)
		}
		closeForeign(files)
		err = r.reply(reply, give)
		rights.Close(give)
		if err != nil {
			return
		}
		*asking = 0
	}
}

// nextCall waits for the next request and returns its number, without taking it.
func (r *rank) nextCall() (call uint32, err error) {
	raw, err := r.socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var head [8]byte
	rerr := raw.Read(func(fd uintptr) bool {
		_, _, err = unix.Recvfrom(int(fd), head[:], unix.MSG_PEEK)
		return err != unix.EAGAIN
	})
	if rerr != nil {
		return 0, rerr
	}
	return wire.CallOf(head[:]), err
}

func (r *rank) reply(reply wire.Reply, give []*os.File) error {
	_, _, err := r.socket.WriteMsgUnix(reply.Encode(), rights.Encode(give...), nil)
	return err
}

// do carries out a request. The files that it returns go to the rank and are closed then.
func (r *rank) do(q wire.Request, files []*os.File) (reply wire.Reply, give []*os.File, err error) {
	switch q.Op {
	case wire.OpHello:
		return r.hello(q)
	case wire.OpInsert:
		reply, err = r.insert(q, files)
	case wire.OpRemove:
		err = r.remove(id.Handle(q.Handle))
	case wire.OpStats:
		reply, err = r.stats(id.Handle(q.Handle))
	case wire.OpRegion:
		return r.region(q)
	case wire.OpState:
		return r.state(q)
	case wire.OpChannel:
		return r.fetch(q)
	case wire.OpDoorbell:
		return r.doorbell(q.Value)
	default:
		err = fmt.Errorf("request %d is unknown", q.Op)
		reply.Status = wire.StatusInvalid
	}
	if err != nil && reply.Status == wire.StatusOK {
		reply.Status = status(err)
	}
	return reply, nil, err
}

// status is what a rank is told about an error.
func status(err error) wire.Status {
	switch {
	case errors.Is(err, extension.ErrNotFound):
		return wire.StatusNotFound
	case errors.Is(err, extension.ErrRefused):
		return wire.StatusRefused
	case errors.Is(err, extension.ErrNoRoom):
		return wire.StatusNoRoom
	}
	return wire.StatusFailed
}

// complain has a request noted that the rank must not make, or that makes no sense. Why an extension was refused is noted where
// that is found out, and one that is gone may be asked for.
func (r *rank) complain(q wire.Request, status wire.Status, err error) {
	switch {
	case q.Op == wire.OpInsert && status != wire.StatusInvalid:
		return
	case status == wire.StatusNotFound && q.Op == wire.OpRegion:
		return
	case status == wire.StatusNotFound:
		if err = r.job.config.Set.Stray(id.Handle(q.Handle)); err == nil {
			return
		}
	}
	r.job.config.Set.Refuse(r.number, err)
}

func (r *rank) hello(q wire.Request) (wire.Reply, []*os.File, error) {
	reply := wire.Reply{Values: [8]uint64{wire.Version}}
	if q.Value != wire.Version {
		reply.Status = wire.StatusVersion
		return reply, nil, fmt.Errorf("the library speaks version %d of the application interface, this node kernel version %d: "+
			"link the program with the library of this Margay", q.Value, wire.Version)
	}
	give, err := r.openings()
	if err != nil {
		reply.Status = wire.StatusFailed
		return reply, nil, err
	}
	r.job.mu.Lock()
	r.job.ledger.joined[r.index] = 1
	r.job.mu.Unlock()
	r.job.use(true)
	return reply, give, nil
}

// openings are what a rank gets that takes part: its area, its ends of the bell and of the alarm, the board and its doorbell.
func (r *rank) openings() (files []*os.File, err error) {
	area, err := keep.File(r.memory)
	if err != nil {
		return nil, err
	}
	files = append(files, area)
	for _, s := range []*socketEnds{&r.bell, &r.alarm} {
		f, err := keep.Duplicate(s.far.Fd(), s.far.Name())
		if err != nil {
			rights.Close(files)
			return nil, err
		}
		files = append(files, f)
	}
	for _, open := range []func() (*os.File, error){
		r.job.channels.Board, func() (*os.File, error) { return r.job.channels.Doorbell(uint64(r.index)) },
	} {
		f, err := open()
		if err != nil {
			rights.Close(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func (r *rank) insert(q wire.Request, files []*os.File) (wire.Reply, error) {
	if len(files) != 1 {
		return wire.Reply{Status: wire.StatusInvalid}, errors.New("the extension's object is to come as one file")
	}
	object, err := readObject(files[0])
	if err != nil {
		return wire.Reply{Status: wire.StatusInvalid}, err
	}
	request := extension.Request{Name: q.Name, Slot: slot.Name(q.Where), Object: object}
	for _, s := range q.Settings {
		switch s.Kind {
		case wire.SetConstant, wire.SetEntries:
			request.Settings = append(request.Settings, extension.Setting{Name: s.Name, Value: s.Value, Entries: s.Kind == wire.SetEntries})
		case wire.SetTrusted:
			request.Trusted = true
		default:
			return wire.Reply{Status: wire.StatusInvalid}, fmt.Errorf("setting %q is of unknown kind %d", s.Name, s.Kind)
		}
	}
	x, err := r.job.config.Set.Insert(request)
	if err != nil {
		return wire.Reply{}, err
	}
	return wire.Reply{Handle: uint32(x.Handle())}, nil
}

// readObject reads a file that the rank has given. It may change while it is read, and may be anything.
func readObject(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("the extension's object is no file") // reading it might never end
	}
	object, err := io.ReadAll(io.NewSectionReader(f, 0, wire.MaxObject+1))
	if err != nil {
		return nil, err
	}
	if len(object) > wire.MaxObject {
		return nil, fmt.Errorf("the extension's object has more than %d bytes", wire.MaxObject)
	}
	return object, nil
}

func (r *rank) remove(handle id.Handle) error {
	return r.job.config.Set.Remove(handle, fmt.Sprintf("rank %d has removed it", r.number))
}

func (r *rank) stats(handle id.Handle) (wire.Reply, error) {
	x, err := r.job.config.Set.Find(handle)
	if err != nil {
		return wire.Reply{}, err
	}
	s := x.Stats()
	reply := wire.Reply{Handle: uint32(handle), Values: [8]uint64{s.Runs, s.Instructions, s.Faults, uint64(s.Time)}}
	if s.LastFault != nil {
		reply.Text = s.LastFault.Error()
	}
	return reply, nil
}

// region gives a rank a region of the job, made anew if need be.
func (r *rank) region(q wire.Request) (wire.Reply, []*os.File, error) {
	set := r.job.config.Set
	_, err := set.Region(q.Name, 0)
	fresh := errors.Is(err, extension.ErrNotFound)
	m, err := set.Region(q.Name, q.Value)
	if err == nil && fresh {
		err = r.job.keepRegion(q.Name, m)
	}
	return giveMemory(m, wire.Reply{Values: [8]uint64{3: set.PlaceOf(q.Name).Address()}}, err)
}

// keepRegion leaves a region with the keeper.
func (j *Job) keepRegion(name string, m *memory.Memory) error {
	words, err := json.Marshal(j.config.Set.PlaceOf(name))
	if err != nil {
		return err
	}
	f, err := keep.File(m)
	if err != nil {
		return err
	}
	defer f.Close()
	return j.config.Keeper.Keep(keep.Item{Name: keptRegions + name, Words: words, Files: []*os.File{f}})
}

// state gives a rank the memory of an extension's map.
func (r *rank) state(q wire.Request) (wire.Reply, []*os.File, error) {
	x, err := r.job.config.Set.Find(id.Handle(q.Handle))
	if err != nil {
		return giveMemory(nil, wire.Reply{}, err)
	}
	var reply wire.Reply
	var give []*os.File
	err = x.Lend(q.Name, func(m *state.Map) (err error) {
		spec := m.Spec()
		reply, give, err = giveMemory(m.Memory(), wire.Reply{Values: [8]uint64{0, uint64(spec.Entries), spec.Stride()}}, nil)
		return err
	})
	if err != nil {
		reply.Status = status(err)
	}
	return reply, give, err
}

// giveMemory completes a reply that hands over memory.
func giveMemory(m *memory.Memory, reply wire.Reply, err error) (wire.Reply, []*os.File, error) {
	if err == nil {
		var f *os.File
		if f, err = keep.File(m); err == nil {
			reply.Values[0] = uint64(len(m.Bytes()))
			return reply, []*os.File{f}, nil
		}
	}
	return wire.Reply{Status: status(err)}, nil, err
}

package call

import (
	"errors"
	"fmt"
	"io"
	"os"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/keep"
	"margay/nimble/memory"
	"margay/nimble/state"
)

// noting says which refusals of a request are logged for the operator.
type noting int

const (
	always    noting = iota
	malformed        // StatusInvalid only; the insertion logs why it refuses an extension
	present          // all but StatusNotFound
	foreign          // all, but StatusNotFound only for handles that the job never owned
)

// row describes a request. The rows below are all requests that there are.
type row struct {
	op    wire.Op
	name  string
	files int                                    // that must come with it; 0: any are closed unread
	check func(wire.Request) (wire.Reply, error) // of its arguments, and the reply with the error; nil: the handler checks them
	notes noting
	do    func(*Server, wire.Request, []*os.File) (wire.Reply, []*os.File, error)
}

var table = []row{
	{op: wire.OpHello, name: "hello", check: checkVersion, do: hello},
	{op: wire.OpInsert, name: "insert", files: 1, check: checkSettings, notes: malformed, do: insert},
	{op: wire.OpRemove, name: "remove", notes: foreign, do: remove},
	{op: wire.OpStats, name: "stats", notes: foreign, do: stats},
	{op: wire.OpRegion, name: "region", notes: present, do: region},
	{op: wire.OpState, name: "state", notes: foreign, do: stateOf},
	{op: wire.OpChannel, name: "channel", do: channel},
	{op: wire.OpDoorbell, name: "doorbell", do: doorbell},
}

// rowOf returns the row of an operation, nil if there is none.
func rowOf(op wire.Op) *row {
	for i := range table {
		if table[i].op == op {
			return &table[i]
		}
	}
	return nil
}

// version is what a reply to hello carries, refused or not.
var version = [8]uint64{wire.Version}

func checkVersion(q wire.Request) (wire.Reply, error) {
	if q.Value == wire.Version {
		return wire.Reply{}, nil
	}
	return wire.Reply{Status: wire.StatusVersion, Values: version}, fmt.Errorf("the library speaks version %d of the application interface, this node kernel version %d: "+
		"link the program with the library of this Margay", q.Value, wire.Version)
}

func hello(s *Server, _ wire.Request, _ []*os.File) (wire.Reply, []*os.File, error) {
	files, err := s.config.Join()
	return wire.Reply{Values: version}, files, err
}

func checkSettings(q wire.Request) (wire.Reply, error) {
	for _, s := range q.Settings {
		switch s.Kind {
		case wire.SetConstant, wire.SetEntries, wire.SetTrusted:
		default:
			return wire.Reply{Status: wire.StatusInvalid}, fmt.Errorf("setting %q is of unknown kind %d", s.Name, s.Kind)
		}
	}
	return wire.Reply{}, nil
}

// insert puts the extension in the file into a slot of the job.
func insert(s *Server, q wire.Request, files []*os.File) (wire.Reply, []*os.File, error) {
	object, err := readObject(files[0])
	if err != nil {
		return wire.Reply{Status: wire.StatusInvalid}, nil, err
	}
	request := extension.Request{Name: q.Name, Slot: slot.Name(q.Where), Object: object}
	for _, s := range q.Settings {
		if s.Kind == wire.SetTrusted {
			request.Trusted = true
			continue
		}
		request.Settings = append(request.Settings, extension.Setting{Name: s.Name, Value: s.Value, Entries: s.Kind == wire.SetEntries})
	}
	x, err := s.config.Set.Insert(request)
	if err != nil {
		return wire.Reply{}, nil, err
	}
	return wire.Reply{Handle: uint32(x.Handle())}, nil, nil
}

// readObject reads a file that the rank has sent. It may be anything, and change while it is read.
func readObject(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("the extension's object is not a regular file") // reading it might never end
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

// remove takes an extension out of its slot.
func remove(s *Server, q wire.Request, _ []*os.File) (wire.Reply, []*os.File, error) {
	return wire.Reply{}, nil, s.config.Set.Remove(id.Handle(q.Handle), fmt.Sprintf("rank %d has removed it", s.config.Rank))
}

// stats describes the runs of an extension.
func stats(s *Server, q wire.Request, _ []*os.File) (wire.Reply, []*os.File, error) {
	x, err := s.config.Set.Find(id.Handle(q.Handle))
	if err != nil {
		return wire.Reply{}, nil, err
	}
	st := x.Stats()
	reply := wire.Reply{Handle: q.Handle, Values: [8]uint64{st.Runs, st.Instructions, st.Faults, uint64(st.Time)}}
	if st.LastFault != nil {
		reply.Text = st.LastFault.Error()
	}
	return reply, nil, nil
}

// region gives the rank a region of its job, and makes it if there is none.
func region(s *Server, q wire.Request, _ []*os.File) (wire.Reply, []*os.File, error) {
	m, err := s.config.Set.Region(q.Name, q.Value)
	if err != nil {
		return wire.Reply{}, nil, err
	}
	return give(m, wire.Reply{Values: [8]uint64{3: s.config.Set.PlaceOf(q.Name).Address()}})
}

// stateOf gives the rank the memory of an extension's map.
func stateOf(s *Server, q wire.Request, _ []*os.File) (reply wire.Reply, files []*os.File, err error) {
	x, err := s.config.Set.Find(id.Handle(q.Handle))
	if err != nil {
		return wire.Reply{}, nil, err
	}
	err = x.Lend(q.Name, func(m *state.Map) (err error) {
		spec := m.Spec()
		reply, files, err = give(m.Memory(), wire.Reply{Values: [8]uint64{0, uint64(spec.Entries), spec.Stride()}})
		return err
	})
	return reply, files, err
}

// give completes a reply that hands over memory.
func give(m *memory.Memory, reply wire.Reply) (wire.Reply, []*os.File, error) {
	f, err := keep.File(m)
	if err != nil {
		return wire.Reply{}, nil, err
	}
	reply.Values[0] = uint64(len(m.Bytes()))
	return reply, []*os.File{f}, nil
}

// channel gives the rank one of its channels.
func channel(s *Server, q wire.Request, _ []*os.File) (wire.Reply, []*os.File, error) {
	c, err := s.config.Channel(q.Value)
	if err != nil {
		return wire.Reply{Status: wire.StatusInvalid}, nil, err
	}
	reply := wire.Reply{Values: [8]uint64{uint64(c.Peer), 0, uint64(c.Local)}}
	switch {
	case c.Mirror != nil:
		reply.Values = c.Mirror.Values()
	case c.Sends:
		reply.Values[1] = 1
	}
	return reply, []*os.File{c.File, c.Doorbell}, nil
}

// doorbell gives the rank the doorbell of a rank of its node.
func doorbell(s *Server, q wire.Request, _ []*os.File) (wire.Reply, []*os.File, error) {
	f, err := s.config.Doorbell(q.Value)
	if err != nil {
		return wire.Reply{Status: wire.StatusInvalid}, nil, err
	}
	return wire.Reply{}, []*os.File{f}, nil
}

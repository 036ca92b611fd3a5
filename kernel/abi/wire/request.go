package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Op says what a Request asks for.
type Op uint32

// The requests of a rank.
const (
	OpHello  Op = 1 // Value: the rank's Version -> the five descriptors of opening; Values[0]: the kernel's Version
	OpInsert Op = 2 // Name: what it is called; Where: slot, empty for the object's own; Settings; file: object -> Handle
	OpRemove Op = 3 // Handle
	OpStats  Op = 4 // Handle -> Values: runs, instructions, faults, nanoseconds; Text: last fault
	OpRegion Op = 5 // Name, Value: size in bytes, 0 for one that is there -> Values[0]: size, Values[3]: address for all; file: memory
	OpState  Op = 6 // Handle, Name: a map of the extension -> Values[0]: size, Values[1]: entries, Values[2]: bytes of one; file: memory

	// OpChannel: Value: which of the rank's channels -> Values[0]: the other rank, Values[1]: 1 if
	// this one is the producer, Values[2]: the other's local rank; files: memory, the other's
	// doorbell. Or Mirror, with Values[1] 2; files: memory, the rank's socket.
	OpChannel  Op = 7
	OpDoorbell Op = 8 // Value: a local rank -> file: its doorbell
)

// Status says how a request went.
type Status uint32

// The statuses.
const (
	StatusOK       Status = 0
	StatusVersion  Status = 1 // the two sides have different versions
	StatusInvalid  Status = 2 // the request makes no sense
	StatusNotFound Status = 3 // no such extension, map or region
	StatusRefused  Status = 4 // not allowed, or the extension was refused
	StatusNoRoom   Status = 5 // not enough memory, or too many
	StatusFailed   Status = 6 // anything else
	StatusAgain    Status = 7 // the node kernel was started again before it answered: it may have been done or not
)

// Bounds of requests.
const (
	MaxName     = 64 // bytes of a name, the end mark included
	MaxSettings = 16
	MaxText     = 256     // bytes of a reply's text, the end mark included
	MaxObject   = 1 << 20 // bytes of an extension's object
)

// Request is what a rank asks. On the wire it is RequestSize bytes, then SettingSize bytes for each
// setting:
//
//	0 u32 op, 4 u32 call, 8 u32 handle, 12 u32 number of settings, 16 u64 value, 24 name, 88 where
type Request struct {
	Op       Op
	Call     uint32 // comes back in the reply
	Handle   uint32
	Value    uint64
	Name     string
	Where    string
	Settings []Setting
}

// Setting changes an extension before it is inserted: the value of a constant, or the number of a
// map's entries.
//
//	0 u64 value, 8 u32 kind, 12 u32 zero, 16 name
type Setting struct {
	Kind  SettingKind
	Name  string
	Value uint64
}

// SettingKind says what a setting sets.
type SettingKind uint32

// The kinds of setting.
const (
	SetConstant SettingKind = 1
	SetEntries  SettingKind = 2
	SetTrusted  SettingKind = 3 // requests trust, which is refused
)

// Reply is what the node kernel answers. On the wire it is ReplySize bytes:
//
//	0 u32 call, 4 u32 status, 8 u32 handle, 12 u32 zero, 16 u64 values[8], 80 text
type Reply struct {
	Call   uint32
	Status Status
	Handle uint32
	Values [8]uint64
	Text   string // why, when the status is not StatusOK
}

// Mirror is what a rank gets to know of the mirrored channels that it shares with a rank of another
// node, a pair. In the values of a reply:
//
//	0 the other rank, 1 2, 2 Number, 3 PeerNumber, 4 Key, 5 PeerKey, 6 Largest in bits 0 to 15, Port in 16 to 31, Address in 32 to 63,
//	7 Windows
type Mirror struct {
	Rank               uint32
	Number, PeerNumber uint32 // of this end and of the other one, in the datagrams to them
	Key, PeerKey       uint64 // the same
	Address            uint32 // IPv4 address of the other end
	Port               uint16 // UDP port of the other end
	Largest            uint16 // bytes of the largest datagram
	Windows            uint16 // UDP port of the other rank's node kernel for package onesided; 0: it has none
}

// mirrorValue is Values[1] of a Mirror.
const mirrorValue = 2

// Values returns the values of a reply that carry m.
func (m Mirror) Values() [8]uint64 {
	return [8]uint64{uint64(m.Rank), mirrorValue, uint64(m.Number), uint64(m.PeerNumber), m.Key, m.PeerKey,
		uint64(m.Address)<<32 | uint64(m.Port)<<16 | uint64(m.Largest), uint64(m.Windows)}
}

// MirrorOf returns the Mirror in the values of a reply to OpChannel, and whether there is one.
func MirrorOf(values [8]uint64) (m Mirror, ok bool) {
	return Mirror{
		Rank: uint32(values[0]), Number: uint32(values[2]), PeerNumber: uint32(values[3]), Key: values[4], PeerKey: values[5],
		Address: uint32(values[6] >> 32), Port: uint16(values[6] >> 16), Largest: uint16(values[6]),
		Windows: uint16(values[7]),
	}, values[1] == mirrorValue
}

// Sizes on the wire, in bytes.
const (
	RequestSize = 88 + MaxName
	SettingSize = 16 + MaxName
	ReplySize   = 80 + MaxText
	MaxRequest  = RequestSize + MaxSettings*SettingSize
)

// Encode returns the request's bytes.
func (r Request) Encode() ([]byte, error) {
	if len(r.Settings) > MaxSettings {
		return nil, fmt.Errorf("wire: %d settings, at most %d are allowed", len(r.Settings), MaxSettings)
	}
	b := make([]byte, RequestSize+len(r.Settings)*SettingSize)
	binary.LittleEndian.PutUint32(b[0:], uint32(r.Op))
	binary.LittleEndian.PutUint32(b[4:], r.Call)
	binary.LittleEndian.PutUint32(b[8:], r.Handle)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(r.Settings)))
	binary.LittleEndian.PutUint64(b[16:], r.Value)
	if err := putName(b[24:24+MaxName], r.Name); err != nil {
		return nil, err
	}
	if err := putName(b[88:88+MaxName], r.Where); err != nil {
		return nil, err
	}
	for i, s := range r.Settings {
		at := b[RequestSize+i*SettingSize:]
		binary.LittleEndian.PutUint64(at[0:], s.Value)
		binary.LittleEndian.PutUint32(at[8:], uint32(s.Kind))
		if err := putName(at[16:16+MaxName], s.Name); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// CallOf returns the number of an encoded request from its first 8 bytes.
func CallOf(head []byte) uint32 { return binary.LittleEndian.Uint32(head[4:]) }

// DecodeRequest reads a request, which may be anything.
func DecodeRequest(b []byte) (Request, error) {
	if len(b) < RequestSize {
		return Request{}, fmt.Errorf("wire: request of %d bytes, it has at least %d", len(b), RequestSize)
	}
	count := binary.LittleEndian.Uint32(b[12:])
	if count > MaxSettings || len(b) != RequestSize+int(count)*SettingSize {
		return Request{}, fmt.Errorf("wire: request of %d bytes with %d settings", len(b), count)
	}
	r := Request{
		Op:     Op(binary.LittleEndian.Uint32(b[0:])),
		Call:   binary.LittleEndian.Uint32(b[4:]),
		Handle: binary.LittleEndian.Uint32(b[8:]),
		Value:  binary.LittleEndian.Uint64(b[16:]),
		Name:   name(b[24 : 24+MaxName]),
		Where:  name(b[88 : 88+MaxName]),
	}
	for i := range int(count) {
		at := b[RequestSize+i*SettingSize:]
		r.Settings = append(r.Settings, Setting{
			Value: binary.LittleEndian.Uint64(at[0:]),
			Kind:  SettingKind(binary.LittleEndian.Uint32(at[8:])),
			Name:  name(at[16 : 16+MaxName]),
		})
	}
	return r, nil
}

// Encode returns the reply's bytes. A text that is too long is cut.
func (r Reply) Encode() []byte {
	b := make([]byte, ReplySize)
	binary.LittleEndian.PutUint32(b[0:], r.Call)
	binary.LittleEndian.PutUint32(b[4:], uint32(r.Status))
	binary.LittleEndian.PutUint32(b[8:], r.Handle)
	for i, v := range r.Values {
		binary.LittleEndian.PutUint64(b[16+8*i:], v)
	}
	copy(b[80:80+MaxText-1], r.Text)
	return b
}

// DecodeReply reads a reply.
func DecodeReply(b []byte) (Reply, error) {
	if len(b) != ReplySize {
		return Reply{}, fmt.Errorf("wire: reply of %d bytes, it has %d", len(b), ReplySize)
	}
	r := Reply{
		Call:   binary.LittleEndian.Uint32(b[0:]),
		Status: Status(binary.LittleEndian.Uint32(b[4:])),
		Handle: binary.LittleEndian.Uint32(b[8:]),
		Text:   name(b[80 : 80+MaxText]),
	}
	for i := range r.Values {
		r.Values[i] = binary.LittleEndian.Uint64(b[16+8*i:])
	}
	return r, nil
}

// putName writes a name with its end mark.
func putName(b []byte, text string) error {
	if len(text) >= len(b) || bytes.IndexByte([]byte(text), 0) >= 0 {
		return fmt.Errorf("wire: name %.80q is too long, at most %d bytes", text, len(b)-1)
	}
	copy(b, text)
	return nil
}

// name reads text up to its end mark, or to the end of b.
func name(b []byte) string {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}

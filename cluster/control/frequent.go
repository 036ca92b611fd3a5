package control

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The messages of each job and heartbeats are wrapped and unwrapped, and their frames encoded and
// decoded, without the reflection of Frame: it is slower, and what it makes of the types of all
// messages at first use is a tenth of the processor time of margay run. The encoding is the same.
// TestFrequent and FuzzFrame compare both ways.

// Fields of Frame.
const (
	fieldCall   protowire.Number = 1
	fieldAnswer protowire.Number = 2
)

// frequent is NewFrame for a message of these; it returns nil for others.
func frequent(body proto.Message) *Frame {
	switch m := body.(type) {
	case *Hello:
		return &Frame{Body: &Frame_Hello{m}}
	case *Welcome:
		return &Frame{Body: &Frame_Welcome{m}}
	case *Heartbeat:
		return &Frame{Body: &Frame_Heartbeat{m}}
	case *Prepare:
		return &Frame{Body: &Frame_Prepare{m}}
	case *Prepared:
		return &Frame{Body: &Frame_Prepared{m}}
	case *Start:
		return &Frame{Body: &Frame_Start{m}}
	case *Started:
		return &Frame{Body: &Frame_Started{m}}
	case *Forget:
		return &Frame{Body: &Frame_Forget{m}}
	case *Forgotten:
		return &Frame{Body: &Frame_Forgotten{m}}
	case *FileChunk:
		return &Frame{Body: &Frame_FileChunk{m}}
	case *Record:
		return &Frame{Body: &Frame_Record{m}}
	case *Ack:
		return &Frame{Body: &Frame_Ack{m}}
	case *RunRequest:
		return &Frame{Body: &Frame_RunRequest{m}}
	case *RunReply:
		return &Frame{Body: &Frame_RunReply{m}}
	case *JobState:
		return &Frame{Body: &Frame_JobState{m}}
	case *Error:
		return &Frame{Body: &Frame_Error{m}}
	case *Done:
		return &Frame{Body: &Frame_Done{m}}
	case *LogLine:
		return &Frame{Body: &Frame_LogLine{m}}
	case *Finish:
		return &Frame{Body: &Frame_Finish{m}}
	case *Stdin:
		return &Frame{Body: &Frame_Stdin{m}}
	case *StdinTaken:
		return &Frame{Body: &Frame_StdinTaken{m}}
	case *Signal:
		return &Frame{Body: &Frame_Signal{m}}
	}
	return nil
}

// frequent is Message for a message of these, with the field of Frame that carries it; it returns
// nil for others.
func (f *Frame) frequent() (protowire.Number, proto.Message) {
	switch b := f.Body.(type) {
	case *Frame_Hello:
		return 10, b.Hello
	case *Frame_Welcome:
		return 11, b.Welcome
	case *Frame_Heartbeat:
		return 22, b.Heartbeat
	case *Frame_Prepare:
		return 24, b.Prepare
	case *Frame_Prepared:
		return 32, b.Prepared
	case *Frame_Start:
		return 25, b.Start
	case *Frame_Started:
		return 33, b.Started
	case *Frame_Forget:
		return 26, b.Forget
	case *Frame_Forgotten:
		return 31, b.Forgotten
	case *Frame_FileChunk:
		return 40, b.FileChunk
	case *Frame_Record:
		return 41, b.Record
	case *Frame_Ack:
		return 42, b.Ack
	case *Frame_RunRequest:
		return 60, b.RunRequest
	case *Frame_RunReply:
		return 61, b.RunReply
	case *Frame_JobState:
		return 63, b.JobState
	case *Frame_Error:
		return 12, b.Error
	case *Frame_Done:
		return 13, b.Done
	case *Frame_LogLine:
		return 23, b.LogLine
	case *Frame_Finish:
		return 30, b.Finish
	case *Frame_Stdin:
		return 43, b.Stdin
	case *Frame_StdinTaken:
		return 44, b.StdinTaken
	case *Frame_Signal:
		return 45, b.Signal
	}
	return 0, nil
}

// emptyFrequent returns an empty message of these, by the field of Frame that carries it, and nil
// for others.
func emptyFrequent(field protowire.Number) proto.Message {
	switch field {
	case 10:
		return new(Hello)
	case 11:
		return new(Welcome)
	case 22:
		return new(Heartbeat)
	case 24:
		return new(Prepare)
	case 32:
		return new(Prepared)
	case 25:
		return new(Start)
	case 33:
		return new(Started)
	case 26:
		return new(Forget)
	case 31:
		return new(Forgotten)
	case 40:
		return new(FileChunk)
	case 41:
		return new(Record)
	case 42:
		return new(Ack)
	case 60:
		return new(RunRequest)
	case 61:
		return new(RunReply)
	case 63:
		return new(JobState)
	case 12:
		return new(Error)
	case 13:
		return new(Done)
	case 23:
		return new(LogLine)
	case 30:
		return new(Finish)
	case 43:
		return new(Stdin)
	case 44:
		return new(StdinTaken)
	case 45:
		return new(Signal)
	}
	return nil
}

// marshalFrame returns an encoded frame after room for its length.
func marshalFrame(f *Frame) (packet []byte, err error) {
	field, body := f.frequent()
	if body == nil || len(f.unknownFields) > 0 {
		return proto.MarshalOptions{}.MarshalAppend(make([]byte, lengthSize, lengthSize+proto.Size(f)), f)
	}
	size := proto.Size(body)
	packet = make([]byte, lengthSize, lengthSize+frameHead+size)
	if f.Call != 0 {
		packet = protowire.AppendVarint(protowire.AppendTag(packet, fieldCall, protowire.VarintType), f.Call)
	}
	if f.Answer != 0 {
		packet = protowire.AppendVarint(protowire.AppendTag(packet, fieldAnswer, protowire.VarintType), f.Answer)
	}
	packet = protowire.AppendVarint(protowire.AppendTag(packet, field, protowire.BytesType), uint64(size))
	begin := len(packet)
	packet, err = proto.MarshalOptions{}.MarshalAppend(packet, body)
	if err == nil && len(packet)-begin != size {
		err = fmt.Errorf("%T was changed while it was encoded", body)
	}
	return packet, err
}

// parseFrame decodes a frame.
func parseFrame(packet []byte) (*Frame, error) {
	if f := parseFrequent(packet); f != nil {
		return f, nil
	}
	f := new(Frame)
	return f, proto.Unmarshal(packet, f)
}

// parseFrequent is parseFrame for a frame with one frequent message. It returns nil for all others,
// and for those with an error.
func parseFrequent(packet []byte) *Frame {
	f := new(Frame)
	for len(packet) > 0 {
		field, kind, n := protowire.ConsumeTag(packet)
		if n < 0 {
			return nil
		}
		packet = packet[n:]
		switch {
		case kind == protowire.VarintType && field == fieldCall:
			f.Call, n = protowire.ConsumeVarint(packet)
		case kind == protowire.VarintType && field == fieldAnswer:
			f.Answer, n = protowire.ConsumeVarint(packet)
		case kind == protowire.BytesType && f.Body == nil:
			var encoded []byte
			if encoded, n = protowire.ConsumeBytes(packet); n >= 0 {
				f.Body = parseBody(field, encoded)
			}
			if f.Body == nil {
				return nil
			}
		default:
			return nil
		}
		if n < 0 {
			return nil
		}
		packet = packet[n:]
	}
	return f
}

// parseBody decodes a frequent message. It returns nil for others, and after an error.
func parseBody(field protowire.Number, encoded []byte) isFrame_Body {
	body := emptyFrequent(field)
	if body == nil || proto.Unmarshal(encoded, body) != nil {
		return nil
	}
	return frequent(body).Body
}

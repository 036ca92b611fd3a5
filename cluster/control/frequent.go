package control

import "google.golang.org/protobuf/proto"

// The messages of each job and heartbeats are wrapped and unwrapped without reflection: it is
// slower, and what it makes at first use is a tenth of the processor time of margay run.
// TestFrequent compares both ways.

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
	}
	return nil
}

// frequent is Message for a message of these; it returns nil for others.
func (f *Frame) frequent() proto.Message {
	switch b := f.Body.(type) {
	case *Frame_Hello:
		return b.Hello
	case *Frame_Welcome:
		return b.Welcome
	case *Frame_Heartbeat:
		return b.Heartbeat
	case *Frame_Prepare:
		return b.Prepare
	case *Frame_Prepared:
		return b.Prepared
	case *Frame_Start:
		return b.Start
	case *Frame_Started:
		return b.Started
	case *Frame_Forget:
		return b.Forget
	case *Frame_Forgotten:
		return b.Forgotten
	case *Frame_FileChunk:
		return b.FileChunk
	case *Frame_Record:
		return b.Record
	case *Frame_Ack:
		return b.Ack
	case *Frame_RunRequest:
		return b.RunRequest
	case *Frame_RunReply:
		return b.RunReply
	case *Frame_JobState:
		return b.JobState
	}
	return nil
}

package show

import (
	"bytes"
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

func TestPrintJSON(t *testing.T) {
	for _, test := range []struct {
		message proto.Message
		want    string
	}{
		{&control.MachineStatus{Machine: `a"b`, ServePid: 1 << 53, FreeCores: 7, SinceNs: -1},
			`{"machine":"a\"b","substrate":"","serve_pid":9007199254740992,"holder_pid":0,"nodes":0,"up":0,"cores":0,"free_cores":7,"jobs":0,"since_ns":-1,"serve_starts":0,"drained":0,"unwritten":0,"off":0,"users":"","administrators":"","role":"","limit_cores":0,"limit_jobs":0,"limit_output":0,"listen":""}`},
		{&control.Error{Code: control.Code_CODE_NO_ROOM, Node: -1}, `{"code":"no_room","text":"","node":-1,"rank":0}`},
		{&control.Error{Code: 99}, `{"code":99,"text":"","node":0,"rank":0}`},
		{&control.RankState{Ended: true}, `{"rank":0,"node":0,"core":0,"ended":true,"exit":null}`},
		{&control.CoreUse{Ranks: []uint32{3, 4}}, `{"core":0,"job":0,"ranks":[3,4]}`},
		{&control.FileChunk{Data: []byte("hello")}, `{"job":0,"data":"aGVsbG8=","last":false}`},
		{&control.NoiseReport{Cores: []*control.CoreNoise{{Interrupts: 5, Seconds: 0.5}}},
			`{"cores":[{"node":0,"core":0,"interrupts":5,"seconds":0.5,"rows":[]}]}`},
	} {
		var out, compact bytes.Buffer
		if err := Message(&out, test.message); err != nil {
			t.Error(err)
		}
		if err := json.Compact(&compact, out.Bytes()); err != nil || compact.String() != test.want {
			t.Errorf("%v\n%s\n%s", err, compact.String(), test.want)
		}
	}
	if err := Message(new(bytes.Buffer), &control.ExtensionLog{}); err == nil {
		t.Error("a map is printed")
	}
}

package serve

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// Nodes get the command of ranks byte for byte, whatever its length. The store does not keep it.
func TestLongStrings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		exec := &control.Exec{Argv: [][]byte{[]byte("app\xff")}}
		for range 15 {
			exec.Env = append(exec.Env, bytes.Repeat([]byte("\xfe"), 130_000))
		}
		s := spec(4)
		s.Path, s.Dir = []byte("/bin/app\xff"), []byte("/home/\xfd")
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: s, Exec: exec})
		for _, n := range m.played {
			p := one[*control.Prepare](t, &n.recorder)
			if !proto.Equal(p.Exec, exec) || !bytes.Equal(p.Spec.Path, s.Path) || !bytes.Equal(p.Spec.Dir, s.Dir) {
				t.Errorf("node %d is to prepare %.500v", n.number, p)
			}
		}
		if command := c.summary(reply.Job).Command; command != "app?" {
			t.Errorf("the command is %q", command)
		}
		err := m.server.store.each(reply.Job, func(stored *control.StoredJob) {
			if size := proto.Size(stored); size > 1000 {
				t.Errorf("the store has %d bytes of the job", size)
			}
		})
		if err != nil {
			t.Error(err)
		}
		// The error of a job that no node can execute names its path.
		other := spec(1)
		other.Path, other.Arch = s.Path, "other"
		if _, err := c.ask(&control.RunRequest{Spec: other}); err == nil || !strings.HasPrefix(err.Error(), "/bin/app? is for other") {
			t.Errorf("it is refused with %v", err)
		}
	})
}

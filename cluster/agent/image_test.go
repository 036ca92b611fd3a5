package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/kernel"
	"margay/kernel/kexec"
)

// playedLinux notes what it is asked for.
type playedLinux struct{ calls []string }

func (l *playedLinux) Write(p kexec.Part, offset uint64, data []byte) error {
	l.calls = append(l.calls, fmt.Sprintf("%v %d %s", p, offset, data))
	return nil
}

func (l *playedLinux) Load(hashes kexec.Hashes, cmdline string) error {
	l.calls = append(l.calls, fmt.Sprintf("load %s %s %s", hashes[kexec.Kernel], hashes[kexec.Initramfs], cmdline))
	return nil
}

func (l *playedLinux) Start() error {
	l.calls = append(l.calls, "start")
	return nil
}

func (l *playedLinux) Unload() error {
	l.calls = append(l.calls, "unload")
	return nil
}

// idle is a node kernel with these jobs.
type idle struct {
	playedKernel
	jobs []kernel.JobInfo
}

func (k *idle) Jobs() []kernel.JobInfo { return k.jobs }

// A node loads an image when its last job has gone, and does not start it if it has got one since.
// A node on the Linux of its host takes none.
func TestImage(t *testing.T) {
	linux, node := new(playedLinux), &idle{jobs: []kernel.JobInfo{{Job: 7}}}
	a := &Agent{config: Config{Linux: linux}, node: node}
	for _, m := range []*control.ImagePiece{{Data: []byte("k")}, {Initramfs: true, Data: []byte("i")}, {Initramfs: true, Offset: 1, Data: []byte("j")}} {
		if err := a.imagePiece(m); err != nil {
			t.Error(err)
		}
	}
	start := &control.StartImage{KernelHash: []byte("K"), InitramfsHash: []byte("I"), Cmdline: "quiet"}
	if err := a.loadImage(start); !errors.Is(err, &control.Failure{Code: control.Code_CODE_RESTARTED}) || !strings.Contains(err.Error(), "job 7") {
		t.Errorf("a node with a job: %v", err)
	}
	node.jobs = nil
	if err := a.loadImage(start); err != nil {
		t.Error(err)
	}
	node.jobs = []kernel.JobInfo{{Job: 8}}
	if err := a.startLinux(); err == nil || !strings.Contains(err.Error(), "job 8") {
		t.Errorf("a node with a job starts another Linux: %v", err)
	}
	node.jobs = nil
	if err := a.startLinux(); err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(linux.calls, ", "), "kernel 0 k, node image 0 i, node image 1 j, load K I quiet, unload, start"; got != want {
		t.Errorf("Linux is asked %s, not %s", got, want)
	}
	a.config.Linux = nil
	if err := errors.Join(a.imagePiece(&control.ImagePiece{}), a.loadImage(start)); !errors.Is(err, errHostLinux) {
		t.Errorf("a hosted node: %v", err)
	}
}

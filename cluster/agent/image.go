package agent

import (
	"errors"
	"fmt"
	"time"

	"margay/cluster/control"
	"margay/kernel/kexec"
)

// errHostLinux refuses an image on a node that runs on the Linux of its host.
var errHostLinux = control.Failf(control.Code_CODE_REFUSED, "it runs on the Linux of its host, and cannot start another one")

// imagePiece takes a piece of an image that the node is to start.
func (a *Agent) imagePiece(m *control.ImagePiece) error {
	if a.config.Linux == nil {
		return errHostLinux
	}
	part := kexec.Kernel
	if m.Initramfs {
		part = kexec.Initramfs
	}
	return a.config.Linux.Write(part, m.Offset, m.Data)
}

// startImage loads an image and starts it in the place of this Linux, unless the node has a job.
// serve gets the answer before the start, which ends the node kernel.
func (a *Agent) startImage(conn *control.Conn, f *control.Frame, m *control.StartImage) {
	err := a.loadImage(m)
	conn.Answer(f, &control.Done{}, err)
	if err != nil {
		return
	}
	conn.Flush(time.Second)
	if err := a.startLinux(); err != nil {
		a.config.Log("%v", err)
	}
}

// startLinux starts the loaded Linux, unless the node has got a job since it was loaded.
func (a *Agent) startLinux() error {
	if jobs := a.node.Jobs(); len(jobs) > 0 {
		return errors.Join(fmt.Errorf("the node does not start the image, because it has job %d", jobs[0].Job), a.config.Linux.Unload())
	}
	return a.config.Linux.Start()
}

func (a *Agent) loadImage(m *control.StartImage) error {
	if a.config.Linux == nil {
		return errHostLinux
	}
	if jobs := a.node.Jobs(); len(jobs) > 0 {
		return control.Failf(control.Code_CODE_RESTARTED, "it still has job %d", jobs[0].Job) // that it forgets just now
	}
	return a.config.Linux.Load(kexec.Hashes{kexec.Kernel: m.KernelHash, kexec.Initramfs: m.InitramfsHash}, m.Cmdline)
}

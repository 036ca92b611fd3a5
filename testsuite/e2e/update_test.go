package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/initramfs"
)

// A node whose new image ends boots its old one and stays out of service, and the next node keeps
// its image. Then the node gets an image that works, while the jobs of a queue run, and takes it
// again when it boots.
func TestUpdate(t *testing.T) {
	m := use(t, "mortal")
	broken := filepath.Join(t.TempDir(), "image")
	if err := initramfs.WriteNodeImage(os.DevNull, []initramfs.File{{Path: "/init", Mode: 0o755, Data: []byte("no program")}}, broken); err != nil {
		t.Fatal(err)
	}
	r := m.margay("node", "update", "0..1", "--image", broken)
	if r.code != 125 || !strings.Contains(r.stderr, "ended before it was up, and the node has booted its old one") || !strings.Contains(r.stderr, "node1: it keeps its image") {
		t.Error(r)
	}
	if nodes := m.margay("nodes").stdout; !strings.Contains(nodes, "node0  drained") || !strings.Contains(nodes, "node1  up") {
		t.Error(nodes)
	}
	if r := m.margay("node", "resume", "0"); r.code != 0 {
		t.Fatal(r)
	}
	var queue []*command
	for range 4 * m.nodes * m.cores {
		queue = append(queue, m.start("run", "--wait", "-n", "1", probe(), "hello"))
	}
	if r := m.margay("node", "update", "0"); r.code != 0 || !strings.Contains(r.stderr, "node0: in service again") {
		t.Error(r)
	}
	for _, c := range queue {
		if r := c.wait(); r.code != 0 {
			t.Error(r)
		}
	}
	if r := m.margay("node", "reboot", "0"); r.code != 0 {
		t.Fatal(r)
	}
	if images := strings.Count(m.margay("nodes", "--json").stdout, `"image": ""`); images != 1 {
		t.Errorf("%d nodes have their first image", images)
	}
	m.usable()
}

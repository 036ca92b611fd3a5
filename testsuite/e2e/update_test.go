package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/initramfs"
)

// A node takes an image that works while the jobs of a queue run. When a later image ends, the node
// boots the one before and stays out of service, and the next node keeps its image.
func TestUpdate(t *testing.T) {
	m := use(t, "mortal")
	var queue []*command
	for range m.nodes*m.cores + 1 {
		queue = append(queue, m.start("run", "--wait", "-n", "1", probe(), "hello"))
	}
	if r := m.margay("node", "update", "0", "--force"); r.code != 0 || !strings.Contains(r.stderr, "node0: in service again") {
		t.Fatal(r)
	}
	for _, c := range queue {
		if r := c.wait(); r.code != 0 {
			t.Error(r)
		}
	}
	firstImages := func() int { return strings.Count(m.margay("nodes", "--json").stdout, `"image": ""`) }
	if images := firstImages(); images != 1 {
		t.Errorf("%d nodes have their first image", images)
	}
	if r := m.margay("node", "update", "0..1"); r.code != 0 || !strings.Contains(r.stderr, "node0: it has the image already") || !strings.Contains(r.stderr, "node1: it has the image already") {
		t.Errorf("an update to the image that they have: %v", r)
	}
	broken := filepath.Join(t.TempDir(), "image")
	if err := initramfs.WriteNodeImage(os.DevNull, []initramfs.File{{Path: "/init", Mode: 0o755, Data: []byte("no program")}}, broken); err != nil {
		t.Fatal(err)
	}
	r := m.margay("node", "update", "0..1", "--image", broken, "--timeout", "10m")
	if r.code != 125 || !strings.Contains(r.stderr, "the node has booted its old") || !strings.Contains(r.stderr, "node1: it keeps its image") {
		t.Error(r)
	}
	if nodes := m.margay("nodes").stdout; !strings.Contains(nodes, "node0  drained") || !strings.Contains(nodes, "node1  up") {
		t.Error(nodes)
	}
	if images := firstImages(); images != 1 {
		t.Errorf("%d nodes have their first image after one that ends", images)
	}
	if r := m.margay("node", "resume", "0"); r.code != 0 {
		t.Fatal(r)
	}
	m.usable()
}

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"margay/cluster/cache"
)

// maxImage is the largest size of a node image, in bytes.
const maxImage = 5_050_000

// buildImage builds the node image with the cache in a folder and returns its bytes.
func buildImage(t *testing.T, cache string) []byte {
	t.Helper()
	output := filepath.Join(t.TempDir(), "node.img")
	r := start(t, func(c *exec.Cmd) { c.Env = append(os.Environ(), "MARGAY_CACHE="+cache) }, "image", "build", "-o", output).wait()
	image, err := os.ReadFile(output)
	if err != nil || r.code != 0 {
		t.Fatalf("image build: %v: %v", err, r)
	}
	return image
}

// The node image is small, and two builds from the same parts have the same bytes.
func TestImage(t *testing.T) {
	ownMachine(t, "own")
	shared, err := cache.Dir()
	if err != nil {
		t.Fatal(err)
	}
	want := buildImage(t, shared)
	if len(want) == 0 || len(want) > maxImage {
		t.Errorf("the image has %d bytes, want at most %d", len(want), maxImage)
	}
	// With a cache of its own, a build is a full build. The fetched kernel is shared.
	cache := t.TempDir()
	if err := os.Chmod(cache, 0o700); err != nil { // a cache is its owner's, whatever the umask
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(shared, "kernel"), filepath.Join(cache, "kernel")); err != nil {
		t.Fatal(err)
	}
	if got := buildImage(t, cache); !bytes.Equal(got, want) {
		t.Errorf("the image has other bytes: %d instead of %d", len(got), len(want))
	}
	if built, err := filepath.Glob(filepath.Join(cache, "image", "*.img")); len(built) != 1 {
		t.Errorf("images in its own cache: %v, %v", built, err)
	}
}

// A node's program lacks what a dependency would bring for a feature that nodes do not use. Each
// name is a function that every user of the package links.
func TestNodeProgram(t *testing.T) {
	program, err := os.ReadFile(filepath.Join(bin, "nodekernel"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(program, []byte("margay/cluster/control.parseFrame")) {
		t.Fatal("the program has no names of functions")
	}
	for _, name := range []string{
		"google.golang.org/protobuf/internal/impl.(*MessageInfo).initOnce", // a message's ProtoReflect is called
		"regexp.compile", // the tables of Unicode come with it
	} {
		if bytes.Contains(program, []byte(name)) {
			t.Errorf("nodekernel links %s", name)
		}
	}
}

// A node needs little memory, and has room for an application in it.
func TestSmallNode(t *testing.T) {
	use(t, "mortal").usable() // 256 MiB
}

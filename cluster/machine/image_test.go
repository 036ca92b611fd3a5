package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// imagesOf makes the folder of a machine whose first image is "first".
func imagesOf(t *testing.T) *virtual {
	t.Helper()
	d := Dir(t.TempDir())
	v := &virtual{dir: d, spec: Spec{Name: "m", Substrate: node.Virtual, Boot: BootKernel, Kernel: "kernel0", Image: d.file("first"), Cmdline: "quiet", Secret: "s"}}
	for name, text := range map[string]string{"first": "first image", "kernel": "a kernel", "image": "an image"} {
		if err := os.WriteFile(d.file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(d.file("nodes"), 0o700); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *virtual) add(t *testing.T, cmdline string) string {
	t.Helper()
	name, err := v.dir.addImage(bootImage{Kernel: v.dir.file("kernel"), Image: v.dir.file("image"), Cmdline: cmdline})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// A node boots the image that was recorded for it last, and others the machine's first one. Images
// that no node boots are removed.
func TestBoots(t *testing.T) {
	v := imagesOf(t)
	boots := func(number id.Node, want string) {
		t.Helper()
		b, err := v.boots(number)
		if err != nil || b.Cmdline != want {
			t.Errorf("node%d boots %+v, %v", number, b, err)
		}
	}
	one, two := v.add(t, "one"), v.add(t, "two")
	if one == two || v.add(t, "one") != one {
		t.Errorf("the images are %s and %s", one, two)
	}
	boots(0, "quiet")
	if err := v.keep(0, one); err != nil {
		t.Fatal(err)
	}
	boots(0, "one margay.image="+one)
	boots(1, "quiet")
	if _, err := v.dir.readImage(two); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
		t.Errorf("an image that no node boots is left: %v", err)
	}
	two = v.add(t, "two")
	if err := errors.Join(v.keep(1, two), v.keep(0, two)); err != nil {
		t.Fatal(err)
	}
	boots(0, "two margay.image="+two)
	if err := v.forget(0); err != nil {
		t.Fatal(err)
	}
	boots(0, "quiet") // the next node of the number
	boots(1, "two margay.image="+two)
	making := v.dir.imageFolder(nextImage + "x")
	if err := os.Mkdir(making, 0o700); err != nil {
		t.Fatal(err)
	}
	v.removeUnused(two)
	if _, err := os.Stat(making); err != nil {
		t.Errorf("an image that is being made: %v", err)
	}
	old := time.Now().Add(-2 * makingImage)
	if err := os.Chtimes(making, old, old); err != nil {
		t.Fatal(err)
	}
	v.removeUnused(two)
	if left, err := filepath.Glob(v.dir.file(imagesName, "*")); err != nil || len(left) != 1 {
		t.Errorf("the images %v are left, %v", left, err)
	}
}

// The folder of a machine that has been removed is not made again.
func TestAddImageToNoMachine(t *testing.T) {
	v := imagesOf(t)
	gone := Dir(v.dir.file("gone"))
	if name, err := gone.addImage(bootImage{Kernel: v.dir.file("kernel"), Image: v.dir.file("image")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("image %s, %v", name, err)
	}
	if _, err := os.Stat(string(gone)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// An image is staged with the configuration of its node, and its hashes.
func TestStage(t *testing.T) {
	v := imagesOf(t)
	name := v.add(t, "one")
	staged, err := v.stage(3, 1, name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(staged.Initramfs)
	if err != nil || !strings.HasPrefix(string(text), "an image") || !strings.Contains(string(text), `"node": 3`) {
		t.Errorf("%.999q, %v", text, err)
	}
	hash, err := hashFile(v.dir.file("kernel"))
	if err != nil || string(hash) != string(staged.KernelHash) || !strings.HasSuffix(staged.Cmdline, " margay.image="+name) {
		t.Errorf("%v, %v", staged, err)
	}
	left := v.add(t, "two") // of an update that failed
	if _, err = v.stage(3, 1, name); err != nil {
		t.Fatal(err)
	}
	if _, err := v.dir.readImage(left); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
		t.Errorf("an image of an earlier update is left: %v", err)
	}
	for _, bad := range []string{"", "..", "../../etc/passwd", "0123", "0123456789abcdeg", "0123456789abcdef"} {
		if _, err := v.stage(3, 1, bad); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) && !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("image %q: %v", bad, err)
		}
	}
}

// Nodes that Margay cannot give another Linux refuse an update with the way out.
func TestCanUpdate(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{Spec{Substrate: node.Virtual, Boot: BootKernel}, ""},
		{Spec{Substrate: node.Hosted}, "run on the Linux of their hosts"},
		{Spec{Substrate: node.Hosts}, "run on the Linux of their hosts"},
		{Spec{Substrate: node.Metal}, "boot over the network"},
		{Spec{Substrate: node.Virtual, Boot: BootHTTP}, "boot over the network"},
	} {
		if err := c.spec.canUpdate(); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.spec, err)
		}
	}
}

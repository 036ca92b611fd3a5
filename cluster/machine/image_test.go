package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/cluster/provision"
	"margay/initramfs/guestkernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// imagesOf makes the folder of a machine whose first image is "first".
func imagesOf(t *testing.T) *virtual {
	t.Helper()
	d := Dir(t.TempDir())
	spec := Spec{Name: "m", Substrate: node.Virtual, Boot: BootKernel, Kernel: "kernel0", Image: d.file("first"), Cmdline: "quiet", Secret: "s"}
	v := &virtual{dir: d, spec: spec, images: &images{dir: d, spec: spec}}
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
	v.images.removeUnused(two)
	if _, err := os.Stat(making); err != nil {
		t.Errorf("an image that is being made: %v", err)
	}
	old := time.Now().Add(-2 * makingImage)
	if err := os.Chtimes(making, old, old); err != nil {
		t.Fatal(err)
	}
	v.images.removeUnused(two)
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
		{Spec{Substrate: node.Metal}, ""},
		{Spec{Substrate: node.Virtual, Boot: BootHTTP}, ""},
	} {
		if err := c.spec.canUpdate(); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.spec, err)
		}
	}
}

// An image is of the kind that the nodes boot, and its kernel of the kind that the machine was made
// with, unless the user names another one.
func TestImageForNodes(t *testing.T) {
	for _, c := range []struct {
		spec         Spec
		given, want  string
		plain, metal bool
	}{
		{Spec{Substrate: node.Virtual, Boot: BootKernel}, "", "", true, false},
		{Spec{Substrate: node.Virtual, Boot: BootUEFI, KernelOf: "/k"}, "", "/k", false, false},
		{Spec{Substrate: node.Metal, KernelOf: provision.Generic}, "", provision.Generic, false, true},
		{Spec{Substrate: node.Metal, KernelOf: provision.Generic}, "mine", "mine", false, true},
	} {
		if o := (ImageOptions{Kernel: c.given}).forNodes(&c.spec); o.Kernel != c.want || o.Plain != c.plain || o.Metal != c.metal {
			t.Errorf("%+v: %+v", c, o)
		}
	}
	for given, want := range map[string]string{"": "", provision.Generic: provision.Generic, "/boot/vmlinuz": "/boot/vmlinuz"} {
		if got, err := kernelOf(given); got != want || err != nil {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
	if got, err := kernelOf("vmlinuz"); !filepath.IsAbs(got) || err != nil {
		t.Errorf("a kernel of the working directory: %q, %v", got, err)
	}
}

// The command line of metal nodes is for all cores that they have, and ends with the user's words.
func TestCmdlineOfNodes(t *testing.T) {
	k := guestkernel.Kernel{Arch: "amd64"}
	for _, c := range []struct {
		spec                  Spec
		begins, contains, end string
	}{
		{Spec{Substrate: node.Virtual, Profile: node.Ticking, Cores: 3}, "console=ttyS0 panic=-1", "isolcpus=managed_irq,domain,1-3 ", "psi=0"},
		{Spec{Substrate: node.Metal, Profile: node.Isolated, KernelWords: "console=ttyS1"}, provision.ScreenToo + " console=ttyS0 panic=-1", "isolcpus=managed_irq,domain,1-N ", " console=ttyS1"},
	} {
		line, err := c.spec.cmdline(k)
		if err != nil || !strings.HasPrefix(line, c.begins) || !strings.Contains(line, c.contains) || !strings.HasSuffix(line, c.end) {
			t.Errorf("%s: %q, %v", c.spec.Substrate, line, err)
		}
	}
}

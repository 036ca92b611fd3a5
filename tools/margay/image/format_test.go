package image_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/initramfs"
	"margay/initramfs/uki"
	"margay/initramfs/uki/ukitest"
	"margay/tools/margay/margaytest"
)

// unified writes a unified kernel image of a node image with one file, and returns its path.
func unified(t *testing.T, words ...string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	if err := initramfs.WriteNodeImage(os.DevNull, []initramfs.File{{Path: "/init"}}, path); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "node.efi"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = uki.Build(ukitest.Stub(8), []uki.Section{
		{Name: uki.Cmdline, Data: []byte(strings.Join(append([]string{"quiet\x1b[A"}, words...), " "))}, {Name: uki.Initrd, Data: image}, {Name: uki.Linux, Data: []byte("MZ")},
	}, f)
	if err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// image list shows what a unified kernel image and a disk consist of, and the node image in them.
// image build puts a unified kernel image that exists on a disk.
func TestListFormats(t *testing.T) {
	program := unified(t)
	inDisk := filepath.Join(t.TempDir(), "disk")
	status, stdout, stderr := margaytest.Margay("", "image", "build", "--format", "disk", "--uki", program, "-o", inDisk)
	margaytest.Wants(t, status, 0, stdout+stderr, inDisk+"\n", "disk, 35.7 MB, sha256 ", "command line quiet?[A\n")
	_, first, _ := margaytest.Margay("", "image", "list", program)
	status, stdout, stderr = margaytest.Margay("", "image", "list", inDisk)
	margaytest.Wants(t, status, 0, stdout+stderr, "disk with an EFI system partition, EFI/BOOT/BOOTX64.EFI in it\nunified kernel image for amd64, not signed\n",
		".initrd  ", "command line quiet?[A\n", " /init\n")
	if !strings.HasSuffix(stdout, "in it\n"+first) {
		t.Errorf("the disk has another unified kernel image:\n%s\n%s", stdout, first)
	}
	status, stdout, stderr = margaytest.Margay("", "image", "list", "--json", inDisk)
	margaytest.Wants(t, status, 0, stdout+stderr, `"program": "EFI/BOOT/BOOTX64.EFI"`, `"name": ".linux"`, `"path": "/init"`)

	text, err := os.ReadFile(inDisk)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(inDisk, text[:1<<21], 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr = margaytest.Margay("", "image", "list", inDisk)
	margaytest.Wants(t, status, 125, stdout+stderr, inDisk+": not a disk image that UEFI firmware boots: it is truncated")
}

// The token of a node is in no listing.
func TestListToken(t *testing.T) {
	program := unified(t, "margay.machine=any\tmargay.token=3-0a")
	for _, args := range []string{"", "--json"} {
		status, stdout, stderr := margaytest.Margay("", append([]string{"image", "list", program}, strings.Fields(args)...)...)
		if status != 0 || strings.Contains(stdout+stderr, "3-0a") || !strings.Contains(stdout, map[string]string{"": "command line quiet?[A margay.machine=any\nwith the token of a node\n", "--json": `"token": true`}[args]) {
			t.Errorf("%s: status %d, %s%s", args, status, stdout, stderr)
		}
	}
}

// Flags that do not go together, and places that cannot be written, are refused before anything is
// built.
func TestBuildRefused(t *testing.T) {
	program := unified(t)
	out := filepath.Join(t.TempDir(), "out")
	for _, c := range []struct {
		want string
		args []string
	}{
		{`there is no image format "iso": use netboot, uki or disk`, []string{"--format", "iso"}},
		{"--format disk needs a file to write: -o FILE", []string{"--format", "disk"}},
		{"--stub is for --format uki and disk", []string{"--stub", program}},
		{"--uki needs --format disk", []string{"--format", "uki", "--uki", program, "-o", out}},
		{"--token is for --format uki and disk", []string{"--token", "-"}},
		{"--token is for a new unified kernel image", []string{"--format", "disk", "--uki", program, "-o", out, "--token", "-"}},
		{"--token -: not the token of a node", []string{"--format", "disk", "-o", out, "--token", "-"}},
		{"no such file", []string{"--format", "disk", "-o", out, "--token", out}},
		{"--kernel-args is for a new unified kernel image", []string{"--format", "disk", "--uki", program, "-o", out, "--kernel-args", "quiet"}},
		{"--card-firmware is for a new unified kernel image", []string{"--format", "disk", "--uki", program, "-o", out, "--card-firmware", "nonfree"}},
		{"--card-firmware is for an image with drivers of real cards", []string{"--card-firmware", "nonfree"}},
		{"not a unified kernel image: it is not an EFI program", []string{"--format", "disk", "--uki", os.DevNull, "-o", out}},
		{"/dev/null is a device", []string{"--format", "disk", "-o", os.DevNull}},
		{`boot profile "loud"`, []string{"--format", "disk", "-o", out, "--profile", "loud"}},
	} {
		status, stdout, stderr := margaytest.Margay("", append([]string{"image", "build"}, c.args...)...)
		margaytest.Wants(t, status, 125, stdout+stderr, c.want)
	}
	if _, err := os.Lstat(out); err == nil {
		t.Error("there is a file")
	}
}

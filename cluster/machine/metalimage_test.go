package machine

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/cluster/metal"
	"margay/cluster/power"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/kernel/abi/node"
)

// addImage adds an image to the folder of the machine.
func (p *playedMetal) addImage(cmdline string) (name string) {
	p.t.Helper()
	folder := p.t.TempDir()
	b := bootImage{Kernel: filepath.Join(folder, "kernel"), Image: filepath.Join(folder, "image"), Cmdline: cmdline, Lacks: []string{"nohz_full"}}
	for _, path := range []string{b.Kernel, b.Image} {
		if err := os.WriteFile(path, []byte("some file"), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	name, err := p.dir.addImage(b)
	if err != nil {
		p.t.Fatal(err)
	}
	return name
}

// A metal node gets the configuration that it would get by HTTP with an image of an update. Once
// that is kept, the boot services give it the image, also when it boots again; other nodes get the
// first one.
func TestMetalImage(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()}, metal.Card{Node: 4, MAC: cardOf(2).String()})
	p.start(3, 1)
	p.ask(1)
	within(t, p.woke)
	if _, _, err := p.start(3, 1); err != nil {
		t.Fatal(err)
	}
	text, err := p.hand(3, false)
	if err != nil {
		t.Fatal(err)
	}
	name := p.addImage("console=ttyS0")
	staged, err := p.stage(3, 1, name)
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(staged.Initramfs)
	for _, want := range []string{"some file", `"address": "10.8.0.5/24"`, `"mac": "` + cardOf(1).String(), `"lacks": [`, `"console": {`, `"token"`} {
		if !strings.Contains(string(image), want) {
			t.Errorf("no %s in the image: %v", want, err)
		}
	}
	if strings.Contains(string(text), "nohz_full") {
		t.Errorf("its first image lacks what the new one lacks: %s", text)
	}
	if info, err := os.Stat(staged.Initramfs); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the image with the token: %v, %v", info, err)
	}
	if staged.Cmdline != "console=ttyS0 margay.image="+name {
		t.Errorf("the command line is %q", staged.Cmdline)
	}
	if _, has, err := p.images.own(3); has || err != nil {
		t.Errorf("it boots the image before that is kept: %v", err)
	}
	if err := p.keep(3, name); err != nil {
		t.Fatal(err)
	}
	if own, has, err := p.images.own(3); !has || err != nil || own.Name != name || own.Cmdline != staged.Cmdline || own.Kernel != staged.Kernel {
		t.Errorf("it boots %+v, %v", own, err)
	}
	if _, has, err := p.images.own(4); has || err != nil {
		t.Errorf("node4 boots it as well: %v", err)
	}
	if _, err := os.Stat(staged.Initramfs); err == nil {
		t.Error("the image with the token is left")
	}
	p.stop(3)
	p.start(3, 1)
	p.ask(1)
	within(t, p.woke)
	if _, _, err := p.start(3, 1); err != nil {
		t.Fatal(err)
	}
	if text, err = p.hand(3, false); err != nil || !strings.Contains(string(text), "nohz_full") {
		t.Errorf("with the kept image: %v: configuration %s", err, text)
	}
	if notices := p.guests().Notices; len(notices) != 0 {
		t.Errorf("notices %q", notices)
	}
	p.stop(3)
	p.remove(3)
	if _, has, err := p.images.own(3); has || err != nil {
		t.Errorf("the next node3 boots the image: %v", err)
	}
}

// A node that boots from its disk loses the image of an update. A notice says so until it boots
// again or is updated.
func TestMetalImageOfDisk(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()})
	boot := func() (config string) {
		t.Helper()
		p.stop(3)
		p.start(3, 1)
		p.ask(1)
		within(t, p.woke)
		if _, _, err := p.start(3, 1); err != nil {
			t.Fatal(err)
		}
		text, err := p.hand(3, true)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	wants := func(when, notice string) {
		t.Helper()
		if got := strings.Join(p.guests().Notices, "; "); (got != "") != (notice != "") || !strings.Contains(got, notice) {
			t.Errorf("%s: notices %q", when, got)
		}
	}
	boot()
	wants("never updated", "")
	name := p.addImage("one")
	for range 2 {
		if err := p.keep(3, name); err != nil {
			t.Fatal(err)
		}
		wants("updated", "")
		if config := boot(); strings.Contains(config, "nohz_full") {
			t.Errorf("it is what the image of the update needs: %s", config)
		}
		wants("booted from its disk", "node3 has booted from its disk, so it does not have image "+name)
		if _, has, err := p.images.own(3); has || err != nil {
			t.Errorf("the image is recorded: %v", err)
		}
	}
	boot()
	wants("booted again", "")
}

// A metal node whose record cannot be read is not started with another image.
func TestMetalImageUnreadable(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()})
	if err := os.WriteFile(p.dir.file(bootsName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.node(3).driver, p.node(3).patience = new(playedPower), 1
	if _, _, err := p.start(3, 1); err == nil || !strings.Contains(err.Error(), bootsName) {
		t.Errorf("%v", err)
	}
}

// A node whose new image hangs is reset by its driver, and boots the image that it had. One without
// a driver is off, with the reason, until it is switched on by hand.
func TestMetalImageHangs(t *testing.T) {
	for _, d := range []*playedPower{{state: power.On}, nil} {
		p, h, n := playPower(t, d)
		byHand := func() <-chan exit {
			t.Helper()
			p.ask(1)
			within(t, p.woke)
			ended, err := h.obey(n, nil, order{kind: switchOn, woke: true, why: "it has begun to boot"})
			if err != nil {
				t.Fatal(err)
			}
			return ended
		}
		var ended <-chan exit
		if d != nil {
			ended = p.boots(h, n)
		} else if _, err := h.startNode(n); !errors.Is(err, errAsleep) {
			t.Fatal(err)
		} else {
			ended = byHand()
			if _, err := p.hand(3, false); err != nil {
				t.Fatal(err)
			}
		}
		name := p.addImage("new")
		if _, err := p.stage(3, 1, name); err != nil {
			t.Fatal(err)
		}
		h.nodeUp(&control.NodeUp{Node: 3})
		ended, err := h.obey(n, ended, order{kind: reboot, why: "reset", once: 1})
		if by := d != nil; by != (err == nil) || !by && (!errors.Is(err, errAsleep) || !n.exit.Off || !n.exit.Waits || !strings.Contains(n.exit.Reason, "no entry below power")) {
			t.Fatalf("with a driver %t: %v, serve was told %v", by, err, n.exit)
		}
		if d == nil {
			ended = byHand()
		}
		if why := p.ask(1); why != "" || ended == nil {
			t.Errorf("it gets no answer: %s", why)
		}
		if _, has, err := p.images.own(3); has || err != nil {
			t.Errorf("it boots the image that hangs: %v", err)
		}
		if _, err := os.Stat(p.dir.stagedImage(3)); err == nil {
			t.Error("the image with the token is left")
		}
	}
}

// An image of a user's is refused where its nodes could not boot it.
func TestCheckImage(t *testing.T) {
	if err := checkKernel(guestkernel.Kernel{Version: "7.1", Arch: "riscv64"}); err == nil || !strings.Contains(err.Error(), "7.1 is for riscv64") {
		t.Errorf("another processor: %v", err)
	}
	if err := checkKernel(guestkernel.Kernel{Arch: runtime.GOARCH}); err != nil {
		t.Error(err)
	}
	entries := func(paths ...string) (all []initramfs.Entry) {
		for _, path := range append(paths, "/init", node.LoadOrder) {
			all = append(all, initramfs.Entry{Path: path})
		}
		return all
	}
	const card, items = "/lib/modules/7.1/kernel/drivers/net/igb.ko", "/lib/modules/7.1/kernel/drivers/firmware/qemu_fw_cfg.ko"
	direct, firmware, rack := Spec{Substrate: node.Virtual, Boot: BootKernel}, Spec{Substrate: node.Virtual, Boot: BootUEFI}, Spec{Substrate: node.Metal}
	for name, c := range map[string]struct {
		spec    Spec
		entries []initramfs.Entry
		want    string
	}{
		"direct":         {direct, entries(card), ""},
		"no init":        {direct, entries(card)[:1], "has no /init"},
		"other modules":  {direct, entries(card, "/lib/modules/7.2/kernel/veth.ko"), "modules of Linux 7.2, and the kernel is Linux 7.1"},
		"no modules":     {direct, entries(), ""},
		"firmware":       {firmware, entries(items), ""},
		"without items":  {firmware, entries(card), "lacks the module qemu_fw_cfg"},
		"metal":          {rack, entries(card, node.Drivers), ""},
		"not for metal":  {rack, entries(card), "margay image build --metal"},
		"metal, no list": {rack, slices.DeleteFunc(entries(), func(e initramfs.Entry) bool { return e.Path == node.LoadOrder }), ""},
	} {
		if err := c.spec.checkImage(c.entries, guestkernel.Kernel{Version: "7.1"}); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package initramfs

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/kernel/abi/node"
)

// selectFrom selects modules from a kernel whose modules are given as "name: dependencies".
func selectFrom(t *testing.T, table string, wanted ...Module) (selection, error) {
	t.Helper()
	dir := t.TempDir()
	for line := range strings.Lines(table) {
		name, depends, _ := strings.Cut(strings.TrimSpace(line), ":")
		write(t, filepath.Join(dir, "kernel", name+".ko"), moduleFile(name, strings.TrimSpace(depends)))
	}
	write(t, filepath.Join(dir, "modules.builtin"), []byte("kernel/in-side.ko\n"))
	x, err := indexModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	return selectModules(context.Background(), x, "1.0", wanted)
}

func TestSelectModules(t *testing.T) {
	const table = "a: b,c\nb: d\nc: d,in_side\nd:\ne-f: d\nlone:"
	for name, c := range map[string]struct {
		wanted                []Module
		load, builtIn, absent []string
	}{
		"nothing":         {},
		"alone":           {wanted: []Module{{Name: "lone"}}, load: []string{"lone"}},
		"diamond":         {wanted: []Module{{Name: "a"}}, load: []string{"d", "b", "c", "a"}},
		"already there":   {wanted: []Module{{Name: "b"}, {Name: "a"}, {Name: "d"}}, load: []string{"d", "b", "c", "a"}},
		"dash":            {wanted: []Module{{Name: "e_f"}, {Name: "e-f"}}, load: []string{"d", "e_f"}},
		"built in":        {wanted: []Module{{Name: "in_side"}, {Name: "lone"}}, load: []string{"lone"}, builtIn: []string{"in_side"}},
		"optional":        {wanted: []Module{{Name: "none", Optional: true}}, absent: []string{"none"}},
		"optional exists": {wanted: []Module{{Name: "lone", Optional: true}}, load: []string{"lone"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := selectFrom(t, table, c.wanted...)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(names(s.load), c.load) || !slices.Equal(s.builtIn, c.builtIn) || !slices.Equal(s.absent, c.absent) {
				t.Errorf("load %v, built in %v, absent %v", names(s.load), s.builtIn, s.absent)
			}
		})
	}
}

func TestSelectModulesErrors(t *testing.T) {
	for name, c := range map[string]struct {
		table, want, text string
		is                error
	}{
		"nowhere":            {"a:", "zz", "module zz of kernel 1.0", ErrNoModule},
		"dependency nowhere": {"a: b\nb: zz", "a", "module b of kernel 1.0: module zz", ErrNoModule},
		"cycle":              {"a: b\nb: c\nc: a", "a", "depends on itself through a, b, c", nil},
		"self":               {"a: a", "a", "depends on itself", nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := selectFrom(t, c.table, Module{Name: c.want})
			var m *ModuleError
			if !errors.As(err, &m) || m.Name != c.want || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("optional with a missing dependency", func(t *testing.T) {
		if _, err := selectFrom(t, "a: zz", Module{Name: "a", Optional: true}); !errors.Is(err, ErrNoModule) {
			t.Errorf("error %v", err)
		}
	})
}

// A module beside kernel/ replaces the kernel's own, wherever its directory sorts.
func TestReplacedModules(t *testing.T) {
	for _, place := range []string{"extra", "updates"} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "kernel/a.ko"), moduleFile("a", ""))
		write(t, filepath.Join(dir, place, "a.ko"), moduleFile("a", ""))
		x, err := indexModules(dir)
		if err != nil || x.files["a"] != place+"/a.ko" {
			t.Errorf("%s: %v, %v", place, x.files, err)
		}
	}
}

func TestReadModule(t *testing.T) {
	want := moduleFile("m", "a,b")
	dir := t.TempDir()
	for suffix, data := range map[string][]byte{"": want, ".zst": zstdBytes(t, want), ".gz": gzipBytes(want)} {
		got, err := readModule(context.Background(), write(t, filepath.Join(dir, "m.ko"+suffix), data))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: %d bytes, %v", suffix, len(got), err)
		}
	}
	for _, suffix := range []string{".zst", ".gz", ".xz"} {
		if _, err := readModule(context.Background(), write(t, filepath.Join(dir, "bad.ko"+suffix), []byte("garbage"))); err == nil {
			t.Errorf("%s: garbage was accepted", suffix)
		}
	}
}

// xz is run; where it is missing the error says what to install.
func TestReadModuleXZ(t *testing.T) {
	want := moduleFile("m", "")
	path := filepath.Join(t.TempDir(), "m.ko.xz")
	xz := exec.Command("xz", "-c")
	xz.Stdin = bytes.NewReader(want)
	if data, err := xz.Output(); err == nil {
		got, err := readModule(context.Background(), write(t, path, data))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	} else if !errors.Is(err, exec.ErrNotFound) {
		t.Fatal(err)
	}
	write(t, path, nil)
	t.Setenv("PATH", t.TempDir())
	if _, err := readModule(context.Background(), path); !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "xz-utils") {
		t.Errorf("error %v", err)
	}
}

func TestReadModinfo(t *testing.T) {
	for depends, want := range map[string][]string{"": nil, "a": {"a"}, "a,b-c,,d": {"a", "b-c", "d"}} {
		got, err := readModinfo(moduleFile("m", depends))
		if err != nil || !slices.Equal(got.depends, want) {
			t.Errorf("%q: %v, %v", depends, got, err)
		}
	}
	for name, data := range map[string][]byte{
		"empty":      nil,
		"text":       []byte("#!/bin/sh\n"),
		"no modinfo": elfFile(elf.EM_X86_64, elf.ET_REL, ".text", []byte("x"), elf.PT_NULL),
		"cut off":    moduleFile("m", "a")[:100],
		"huge":       elfFile(elf.EM_X86_64, elf.ET_REL, ".modinfo", make([]byte, maxModinfo+1), elf.PT_NULL),
	} {
		if got, err := readModinfo(data); err == nil {
			t.Errorf("%s: accepted with %v", name, got)
		}
	}
}

func TestParseModinfo(t *testing.T) {
	const text = "alias=pci:v1d*\x00alias=tcp-ulp-tls\x00alias=pci:v2d*\x00softdep=pre: a b-c post: d pre: e\x00softdep=f\x00softdep=pre: g\x00" +
		"depends=\x00depends=late\x00alias\x00=\x00description=alias=x:y"
	got := parseModinfo([]byte(text))
	if !slices.Equal(got.aliases, []string{"pci:v1d*", "pci:v2d*"}) || !slices.Equal(got.before, []string{"a", "b-c", "e", "g"}) || len(got.depends) != 0 {
		t.Errorf("%+v", got)
	}
}

func FuzzReadModinfo(f *testing.F) {
	f.Add(moduleFile("m", "a,b"))
	f.Add(programFile())
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := readModinfo(data)
		if err != nil && info.depends != nil || slices.Contains(info.depends, "") {
			t.Fatalf("%+v, %v", info, err)
		}
	})
}

func FuzzParseModinfo(f *testing.F) {
	f.Add([]byte("license=GPL\x00depends=a,b\x00softdep=pre: c post: d\x00alias=pci:v1\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := parseModinfo(data)
		for _, d := range m.depends {
			if d == "" || strings.ContainsAny(d, ",\x00") {
				t.Fatalf("dependency %q", d)
			}
		}
		for _, d := range m.before {
			if len(strings.Fields(d)) != 1 || strings.HasSuffix(d, ":") {
				t.Fatalf("it is loaded before: %q", d)
			}
		}
		for _, a := range m.aliases {
			if !strings.Contains(a, ":") || strings.Contains(a, "\x00") {
				t.Fatalf("alias %q", a)
			}
		}
	})
}

// driverFile returns a module with further strings in its section .modinfo.
func driverFile(name, depends string, more ...string) []byte {
	info := strings.Join(append(more, "depends="+depends, "name="+name), "\x00") + "\x00"
	return elfFile(elf.EM_X86_64, elf.ET_REL, ".modinfo", []byte(info), elf.PT_NULL)
}

// Drivers come with what they need and with the devices that they are for. What every node loads is
// not among that.
func TestSelectDrivers(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"base":      moduleFile("base", ""),
		"always":    moduleFile("always", "base"),
		"algo":      moduleFile("algo", "base"),
		"card":      driverFile("card", "algo,base,in_side", "alias=pci:card*", "alias=pci:older*"),
		"bus":       driverFile("bus", "algo", "alias=pci:bus*"),
		"on-bus":    driverFile("on_bus", "bus", "alias=auxiliary:bus.eth"),
		"silent":    moduleFile("silent", "bus"),
		"phy":       driverFile("phy", "", "alias=mdio:phy", "softdep=pre: needs-phy"), // it wants what wants it
		"needs-phy": driverFile("needs_phy", "", "softdep=pre: phy gone in-side post: always", "alias=pci:needs*"),
		"mute":      moduleFile("mute", "algo"),
		"knot":      driverFile("knot", "", "alias=pci:knot*", "softdep=pre: knot-end lame"), // it can have neither
		"knot-end":  moduleFile("knot_end", "knot"),
		"lame":      moduleFile("lame", "nowhere"),
	} {
		write(t, filepath.Join(dir, "kernel", name+".ko"), data)
	}
	write(t, filepath.Join(dir, "modules.builtin"), []byte("kernel/in-side.ko\n"))
	x, err := indexModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	wanted := []Module{
		{Name: "card", Driver: true}, {Name: "always"}, {Name: "on_bus", Driver: true}, {Name: "silent", Driver: true}, {Name: "needs-phy", Driver: true},
		{Name: "mute", Driver: true}, {Name: "in_side", Driver: true}, {Name: "none", Optional: true, Driver: true}, {Name: "base", Driver: true},
		{Name: "knot", Driver: true},
	}
	s, err := selectModules(context.Background(), x, "1.0", wanted)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(s.load); !slices.Equal(got, []string{"base", "always"}) {
		t.Errorf("every node loads %v", got)
	}
	if got := names(s.drivers); !slices.Equal(got, []string{"algo", "card", "bus", "on_bus", "silent", "phy", "needs_phy", "mute", "knot"}) {
		t.Errorf("drivers %v", got)
	}
	if !slices.Equal(s.builtIn, []string{"in_side"}) || !slices.Equal(s.absent, []string{"none"}) {
		t.Errorf("built in %v, absent %v", s.builtIn, s.absent)
	}
	text, err := node.EncodeDrivers(s.listDrivers(wanted))
	if err != nil {
		t.Fatal(err)
	}
	const want = `algo card
	pci:card*
	pci:older*
algo bus
	pci:bus*
algo bus on-bus
	auxiliary:bus.eth
algo bus silent
	pci:bus*
phy
	mdio:phy
phy needs-phy
	pci:needs*
algo mute
	*
knot
	pci:knot*
`
	got := strings.NewReplacer("/lib/modules/1.0/kernel/", "", ".ko\n\t", "\n\t", ".ko\n", " ").Replace(string(text))
	if got != want {
		t.Errorf("drivers\n%swant\n%s", got, want)
	}
}

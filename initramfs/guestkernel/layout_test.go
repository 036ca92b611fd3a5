package guestkernel

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// imageWith returns the start of an x86 image whose header names a version.
func imageWith(version string) string {
	head := make([]byte, 0x400)
	copy(head[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(head[0x20e:], 0x100)
	copy(head[0x300:], version+" (builder) #1 SMP\x00")
	return string(head)
}

const sampleConfig = "# CONFIG_OFF is not set\nCONFIG_SCHED_CLASS_EXT=y\nCONFIG_NO_HZ_FULL=m\nCONFIG_HZ=250\nCONFIG_NAME=\"text\"\n"

func arch(t *testing.T) Arch {
	t.Helper()
	a, err := ArchNamed("amd64")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// write makes a file and the folders that lead to it.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) Kernel {
	t.Helper()
	k, err := Open(path, arch(t))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Every layout a user may name leads to image, modules and configuration of the same kernel.
func TestOverrideLayouts(t *testing.T) {
	const v = "9.1.0-x"
	for name, c := range map[string]struct{ image, modules, config, override string }{
		"distribution root":  {"boot/vmlinuz-" + v, "lib/modules/" + v, "boot/config-" + v, ""},
		"merged /usr":        {"usr/lib/modules/" + v + "/vmlinuz", "usr/lib/modules/" + v, "usr/lib/modules/" + v + "/config", ""},
		"image in boot":      {"boot/vmlinuz-" + v, "lib/modules/" + v, "boot/config-" + v, "boot/vmlinuz-" + v},
		"image with modules": {"lib/modules/" + v + "/vmlinuz", "lib/modules/" + v, "lib/modules/" + v + "/config", "lib/modules/" + v + "/vmlinuz"},
		"module directory":   {"lib/modules/" + v + "/vmlinuz", "lib/modules/" + v, "lib/modules/" + v + "/config", "lib/modules/" + v},
		"modules_install":    {"vmlinuz", "lib/modules/" + v, "config", ""},
		"beside lib":         {"bzImage", "lib/modules/" + v, "config", "bzImage"},
		"no modules":         {"bzImage", "", "", "bzImage"},
		"no modules, tree":   {"vmlinuz", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(root, c.image), imageWith(v))
			want := Kernel{Version: v, Arch: "amd64", Image: filepath.Join(root, c.image)}
			if c.modules != "" {
				want.Modules = filepath.Join(root, c.modules)
				write(t, filepath.Join(want.Modules, "modules.builtin"), "")
			}
			if c.config != "" {
				want.Config = filepath.Join(root, c.config)
				write(t, want.Config, sampleConfig)
			}
			k := open(t, filepath.Join(root, c.override))
			if k.Version != want.Version || k.Arch != want.Arch || k.Image != want.Image || k.Modules != want.Modules || k.Config != want.Config {
				t.Errorf("got %+v\nwant %+v", k, want)
			}
			if k.ConfigKnown() != (c.config != "") || !strings.Contains(k.Source, root) {
				t.Errorf("configuration known: %v; source %q", k.ConfigKnown(), k.Source)
			}
		})
	}
}

func TestOverrideNewest(t *testing.T) {
	root := t.TempDir()
	for _, v := range []string{"6.9.0", "6.10.0", "6.11.0"} {
		write(t, filepath.Join(root, "lib/modules", v, "modules.builtin"), "")
	}
	for _, v := range []string{"6.9.0", "6.10.0"} {
		write(t, filepath.Join(root, "boot/vmlinuz-"+v), imageWith(v))
	}
	if k := open(t, root); k.Version != "6.10.0" {
		t.Errorf("version %s, want the newest that has an image", k.Version)
	}
}

func TestOverrideErrors(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "Image"), "not an x86 image")
	for name, c := range map[string]struct{ path, text string }{
		"absent":     {filepath.Join(root, "nothing"), "no such file"},
		"no image":   {t.TempDir(), ErrNoImage.Error()},
		"no version": {filepath.Join(root, "Image"), "vmlinuz-VERSION"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(c.path, arch(t))
			if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("error %v", err)
			}
			if strings.Contains(err.Error(), "set KERNEL") {
				t.Errorf("advice to do what was done: %v", err)
			}
		})
	}
	if _, err := ArchNamed("vax"); err == nil || !strings.Contains(err.Error(), "arm64") {
		t.Errorf("unknown architecture: %v", err)
	}
}

func TestLacks(t *testing.T) {
	options, err := parseConfig(strings.NewReader(sampleConfig))
	if err != nil {
		t.Fatal(err)
	}
	k := Kernel{options: options}
	if k.Option("HZ") != "250" || k.Option("NAME") != "text" || k.Option("OFF") != "" {
		t.Errorf("options %v", options)
	}
	missing := lacks(options)
	if slices.Contains(missing, "sched_ext") || !slices.Contains(missing, "nohz_full") || slices.Contains(missing, FeatureConfig) {
		t.Errorf("lacks %v", missing)
	}
	all := map[string]string{}
	for _, f := range Features {
		for _, o := range f.Options {
			all[o] = "y"
		}
	}
	if missing := lacks(all); len(missing) != 0 {
		t.Errorf("a kernel with everything lacks %v", missing)
	}
	unknown := lacks(nil)
	if len(unknown) != len(Features)+1 {
		t.Errorf("an unknown kernel lacks %v", unknown)
	}
	for _, name := range unknown {
		if Describe(name) == Describe("nonsense") {
			t.Errorf("no description of %s", name)
		}
	}
}

func FuzzHeaderVersion(f *testing.F) {
	f.Add([]byte(imageWith("7.2.0")))
	f.Add([]byte(imageWith("../x")))
	f.Fuzz(func(t *testing.T, head []byte) {
		v := headerVersion(head)
		if strings.ContainsAny(v, "/ \n\x00") {
			t.Fatalf("version %q", v)
		}
	})
}

package node

import (
	"reflect"
	"strings"
	"testing"
)

var someDrivers = []Driver{
	{Modules: []string{"/lib/modules/9/kernel/i2c-algo-bit.ko", "/lib/modules/9/kernel/igb.ko"}, Aliases: []string{"pci:v00008086d000010D6sv*sd*bc*sc*i*", "pci:v00008086d0000150[9-E]sv*sd*bc*sc*i*"}},
	{Modules: []string{"/lib/modules/9/kernel/qemu fw-cfg.ko"}, Aliases: []string{"acpi*:QEMU0002:*", `dmi:*:pn\[a]?:*`}},
}

const someText = `/lib/modules/9/kernel/i2c-algo-bit.ko
/lib/modules/9/kernel/igb.ko
	pci:v00008086d000010D6sv*sd*bc*sc*i*
	pci:v00008086d0000150[9-E]sv*sd*bc*sc*i*
/lib/modules/9/kernel/qemu fw-cfg.ko
	acpi*:QEMU0002:*
	dmi:*:pn\[a]?:*
`

func TestDrivers(t *testing.T) {
	text, err := EncodeDrivers(someDrivers)
	if err != nil || string(text) != someText {
		t.Fatalf("%s, %v", text, err)
	}
	got, err := ParseDrivers(text)
	if err != nil || !reflect.DeepEqual(got, someDrivers) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got[0].Name() != "igb" || ModuleName(got[0].Modules[0]) != "i2c_algo_bit" {
		t.Errorf("names %s, %s", got[0].Name(), ModuleName(got[0].Modules[0]))
	}
	if none, err := ParseDrivers(nil); err != nil || len(none) != 0 {
		t.Errorf("an empty file: %v, %v", none, err)
	}
}

func TestDriversRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"alias first":  {"\tpci:*\n/lib/a.ko\n", "alias without a module"},
		"no alias":     {"/lib/a.ko\n", "/lib/a.ko has no aliases"},
		"last":         {"/lib/a.ko\n\tpci:*\n/lib/b.ko\n", "/lib/b.ko has no aliases"},
		"truncated":    {"/lib/a.ko\n\tpci:*", "truncated"},
		"empty line":   {"/lib/a.ko\n\n\tpci:*\n", `"" is not the path of a module`},
		"relative":     {"a.ko\n\tpci:*\n", `"a.ko" is not the path`},
		"leaves":       {"/lib/../a.ko\n\tpci:*\n", "is not the path"},
		"program":      {"/init\n\tpci:*\n", `"/init" is not the path`},
		"empty alias":  {"/lib/a.ko\n\t\n", `"" of a is not an alias`},
		"open set":     {"/lib/a.ko\n\tpci:v[0-9\n", "is not an alias"},
		"null":         {"/lib/a.ko\n\tpci:\x00\n", "is not an alias"},
		"later module": {"/lib/a.ko\n\tpci:*\nx\n\tpci:*\n", `"x" is not the path`},
		"huge":         {strings.Repeat("/lib/a.ko\n", maxDrivers/10+1), "at most"},
	} {
		if d, err := ParseDrivers([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	for _, d := range []Driver{{}, {Modules: []string{"/a.ko"}}, {Modules: []string{"/a\n.ko"}, Aliases: []string{"a"}}, {Modules: []string{"/a.ko"}, Aliases: []string{"a\n"}}} {
		if text, err := EncodeDrivers([]Driver{d}); err == nil {
			t.Errorf("%+v was written as %q", d, text)
		}
	}
}

// Aliases and modaliases as Linux has them.
func TestFor(t *testing.T) {
	const card = "pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i00"
	for _, c := range []struct {
		alias, modalias string
		want            bool
	}{
		{"pci:v00008086d000010D3sv*sd*bc*sc*i*", card, true},
		{"pci:v00008086d000010D[0-4]sv*sd*bc*sc*i*", card, true},
		{"pci:v00008086d000010D[4-9]sv*sd*bc*sc*i*", card, false},
		{"pci:v00008086d000010D[^4-9]sv*sd*bc*sc*i*", card, true},
		{"pci:v00008086d000010D?sv*sd*bc02sc00i*", card, true},
		{"pci:v00008086d000010D?sv*sd*bc01sc00i*", card, false},
		{"pci:v00008086d000010D3", card, false},
		{"v00008086*", card, false},
		{"*", card, true},
		{"virtio:d00000001v*", "virtio:d00000001v00001AF4", true},
		{"virtio:d00000001v*", "virtio:d00000010v00001AF4", false},
		{"acpi*:QEMU0002:*", "acpi:QEMU0002:", true},
		{"acpi*:PNP0A03:*", "acpi:PNP0A08:PNP0A03:", true},
		{"of:N*T*Cqemu,fw-cfg-mmio", "of:Nfw-cfgTCqemu,fw-cfg-mmio", true},
		{"auxiliary:mlx4_core.eth", "auxiliary:mlx4_core.eth", true},
		{"auxiliary:mlx4_core.eth", "auxiliary:mlx4_core.eth.0", false},
		{`dmi:\*`, "dmi:*", true},
		{`dmi:\*`, "dmi:x", false},
		{"a", "", false},
	} {
		d := Driver{Modules: []string{"/a.ko"}, Aliases: []string{"none:", c.alias}}
		if got := d.For(c.modalias); got != c.want {
			t.Errorf("%s is for %s: %v", c.alias, c.modalias, got)
		}
	}
}

// A text that is accepted is the text of its drivers, and each alias can be matched.
func FuzzParseDrivers(f *testing.F) {
	f.Add([]byte(someText), "pci:v00008086d000010D6sv00008086sd0000A01Fbc02sc00i00")
	f.Add([]byte("/a.ko\n\t[^]-a]*\\*\n"), "pci")
	f.Fuzz(func(t *testing.T, text []byte, modalias string) {
		drivers, err := ParseDrivers(text)
		if err != nil {
			return
		}
		for _, d := range drivers {
			d.For(modalias)
			if d.Name() == "" {
				t.Errorf("%q has no name", d.Modules)
			}
		}
		if again, err := EncodeDrivers(drivers); err != nil || string(again) != string(text) {
			t.Errorf("%q became %q, %v", text, again, err)
		}
	})
}

package initramfs

import (
	"path/filepath"
	"strings"
	"testing"

	"margay/initramfs/guestkernel"
)

// signed is a module with a signature, as Linux's scripts/sign-file makes it.
func signed(module string, signature int) string {
	trailer := append(make([]byte, 8), byte(signature>>24), byte(signature>>16), byte(signature>>8), byte(signature))
	return module + strings.Repeat("s", signature) + string(trailer) + signatureMark
}

func TestUnsigned(t *testing.T) {
	for _, c := range []struct{ name, module, want string }{
		{"signed", signed("module", 263), "module"},
		{"empty signature", signed("module", 0), "module"},
		{"signed twice", signed(signed("module", 9), 9), signed("module", 9)},
		{"none", "module", "module"},
		{"empty", "", ""},
		{"mark alone", signatureMark, signatureMark},
		{"too long", signed("module", 263)[200:], signed("module", 263)[200:]},
		{"mark inside", signatureMark + "module", signatureMark + "module"},
	} {
		if got := unsigned([]byte(c.module)); string(got) != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// kernelWith returns a kernel with one signed module and a configuration; empty: it is unknown.
func kernelWith(t *testing.T, config, module string) guestkernel.Kernel {
	t.Helper()
	root := t.TempDir()
	if config != "" {
		write(t, filepath.Join(root, "config-"+testVersion), []byte("CONFIG_BLK_DEV_INITRD=y\nCONFIG_RD_XZ=y\nCONFIG_XZ_DEC_X86=y\n"+config))
	}
	write(t, filepath.Join(root, "lib/modules", testVersion, "kernel/extra.ko"), []byte(module))
	k, err := guestkernel.Open(write(t, filepath.Join(root, "vmlinuz-"+testVersion), nil), amd64(t))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// In a plain image modules lose their signatures if the kernel is known to take them like that.
func TestModulesWithoutSignatures(t *testing.T) {
	module := string(moduleFile("extra", ""))
	whole := signed(module, 256)
	for name, c := range map[string]struct {
		config string
		plain  bool
		want   string
	}{
		"takes them":    {"CONFIG_MODULE_SIG=y\n", true, module},
		"compressed":    {"CONFIG_MODULE_SIG=y\n", false, whole},
		"unknown":       {"", true, whole},
		"forced":        {"CONFIG_MODULE_SIG_FORCE=y\n", true, whole},
		"lockdown":      {"CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y\n", true, whole},
		"more lockdown": {"CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY=y\n", true, whole},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t)
			spec.Kernel, spec.Modules, spec.Plain = kernelWith(t, c.config, whole), []Module{{Name: "extra"}}, c.plain
			image, _ := build(t, spec)
			read := readArchive
			if !c.plain {
				read = unpacked
			}
			path := strings.TrimPrefix("/lib/modules/"+testVersion+"/kernel/extra.ko", "/")
			if got := contentOf(t, read(t, image)[path]); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

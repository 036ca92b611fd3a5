package initramfs

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"margay/initramfs/guestkernel"
)

// elfFile returns a 64-bit ELF file with one section, if it is named, and one program header, if it
// has a type.
func elfFile(machine elf.Machine, kind elf.Type, section string, content []byte, program elf.ProgType) []byte {
	names := "\x00.shstrtab\x00" + section + "\x00"
	h := elf.Header64{
		Type: uint16(kind), Machine: uint16(machine), Version: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64,
		Phoff: 64, Phnum: 1, Shnum: 3, Shstrndx: 1,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	const dataAt = 64 + 56
	h.Shoff = dataAt + uint64(len(names)+len(content))
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_STRTAB), Off: dataAt, Size: uint64(len(names))},
		{Name: 11, Type: uint32(elf.SHT_PROGBITS), Off: dataAt + uint64(len(names)), Size: uint64(len(content))},
	}
	var b bytes.Buffer
	for _, part := range []any{h, elf.Prog64{Type: uint32(program)}, []byte(names), content, sections} {
		binary.Write(&b, binary.LittleEndian, part)
	}
	return b.Bytes()
}

// moduleFile returns a kernel module that says it depends on others, separated by commas.
func moduleFile(name, depends string) []byte {
	info := "license=GPL\x00depends=" + depends + "\x00name=" + name + "\x00"
	return elfFile(elf.EM_X86_64, elf.ET_REL, ".modinfo", []byte(info), elf.PT_NULL)
}

// programFile returns a static program.
func programFile() []byte {
	return elfFile(elf.EM_X86_64, elf.ET_EXEC, ".text", bytes.Repeat([]byte("program "), 1000), elf.PT_LOAD)
}

func zstdBytes(t *testing.T, data []byte) []byte {
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	return e.EncodeAll(data, nil)
}

// xzBytes runs xz with the options of an image, or with others.
func xzBytes(t testing.TB, data []byte, options ...string) []byte {
	t.Helper()
	if options == nil {
		options = packing("amd64")
	}
	packed, err := filter(context.Background(), bytes.NewReader(data), append(options, "-c")...)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func gzipBytes(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data)
	w.Close()
	return b.Bytes()
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const testVersion = "9.9.1-test"

// testKernel returns a kernel with the default modules: some compressed, some built in, one absent.
func testKernel(t *testing.T) guestkernel.Kernel {
	t.Helper()
	root := t.TempDir()
	modules := filepath.Join(root, "lib/modules", testVersion)
	write(t, filepath.Join(root, "vmlinuz-"+testVersion), nil)
	write(t, filepath.Join(root, "config-"+testVersion),
		[]byte("CONFIG_BLK_DEV_INITRD=y\nCONFIG_RD_XZ=y\nCONFIG_XZ_DEC_X86=y\nCONFIG_NO_HZ_FULL=y\nCONFIG_CPU_ISOLATION=y\nCONFIG_RCU_NOCB_CPU=y\n"))
	write(t, filepath.Join(modules, "modules.builtin"), []byte("kernel/drivers/virtio/virtio_pci.ko\nkernel/lib/crc.ko\n"))
	for path, data := range map[string][]byte{
		"kernel/net/core/failover.ko":                 moduleFile("failover", ""),
		"kernel/drivers/net/net_failover.ko.zst":      zstdBytes(t, moduleFile("net_failover", "failover,crc")),
		"kernel/drivers/net/virtio_net.ko.gz":         gzipBytes(moduleFile("virtio_net", "net_failover")),
		"kernel/drivers/char/hw_random/virtio-rng.ko": moduleFile("virtio_rng", ""),
		"kernel/drivers/net/veth.ko":                  moduleFile("veth", ""),
	} {
		write(t, filepath.Join(modules, path), data)
	}
	k, err := guestkernel.Open(filepath.Join(root, "vmlinuz-"+testVersion), amd64(t))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func amd64(t *testing.T) guestkernel.Arch {
	t.Helper()
	arch, err := guestkernel.ArchNamed("amd64")
	if err != nil {
		t.Fatal(err)
	}
	return arch
}

func testSpec(t *testing.T) Spec {
	t.Helper()
	return Spec{Kernel: testKernel(t), Init: write(t, filepath.Join(t.TempDir(), "init"), programFile())}
}

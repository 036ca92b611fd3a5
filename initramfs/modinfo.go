package initramfs

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"strings"
)

// maxModinfo bounds the bytes of a module's section .modinfo.
const maxModinfo = 1 << 20

// modinfo is what a module says about itself.
type modinfo struct {
	depends []string // modules that must be loaded before it
	before  []string // modules that it wants to be loaded before it, if the kernel has them (softdep)
	aliases []string // patterns of the devices that it is for

	firmware []string // names of the files that it may ask the kernel for
}

// readModinfo returns what a module, an ELF file, says about itself.
func readModinfo(module []byte) (modinfo, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return modinfo{}, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return modinfo{}, errors.New("it has no section .modinfo, so it is not a kernel module")
	}
	if section.Size > maxModinfo || section.FileSize > maxModinfo {
		return modinfo{}, fmt.Errorf("its section .modinfo has more than %d bytes", maxModinfo)
	}
	data, err := section.Data()
	if err != nil {
		return modinfo{}, fmt.Errorf("its section .modinfo: %w", err)
	}
	return parseModinfo(data), nil
}

// parseModinfo reads the strings of a section .modinfo, "key=value" each ended by NUL:
//
//	depends=a,b
//	softdep=pre: c d post: e
//	alias=pci:v00008086d000010D3sv*sd*bc*sc*i*
//	firmware=e100/d101m_ucode.bin
//
// An alias without a colon is not of a device. What a module wants to be loaded after it is for
// features that a node does not use.
func parseModinfo(text []byte) (m modinfo) {
	for text := range strings.SplitSeq(string(text), "\x00") {
		key, value, _ := strings.Cut(text, "=")
		switch {
		case key == "depends" && m.depends == nil:
			m.depends = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		case key == "softdep":
			m.before = append(m.before, parseSoftdep(value)...)
		case key == "alias" && strings.Contains(value, ":"):
			m.aliases = append(m.aliases, value)
		case key == "firmware":
			m.firmware = append(m.firmware, value)
		}
	}
	return m
}

// parseSoftdep returns the modules after "pre:" in a softdep.
func parseSoftdep(value string) (before []string) {
	pre := false
	for word := range strings.FieldsSeq(value) {
		if strings.HasSuffix(word, ":") {
			pre = word == "pre:"
		} else if pre {
			before = append(before, word)
		}
	}
	return before
}

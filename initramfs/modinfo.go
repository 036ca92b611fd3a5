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

// readDepends returns the names of the modules that must be loaded before a module, an ELF file.
func readDepends(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it has no section .modinfo, so it is not a kernel module")
	}
	if section.Size > maxModinfo || section.FileSize > maxModinfo {
		return nil, fmt.Errorf("its section .modinfo has more than %d bytes", maxModinfo)
	}
	data, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("its section .modinfo: %w", err)
	}
	return parseDepends(data), nil
}

// parseDepends finds "depends=a,b" among the strings of a section .modinfo, "key=value" each ended
// by NUL.
func parseDepends(modinfo []byte) []string {
	for text := range strings.SplitSeq(string(modinfo), "\x00") {
		if list, ok := strings.CutPrefix(text, "depends="); ok {
			return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
		}
	}
	return nil
}

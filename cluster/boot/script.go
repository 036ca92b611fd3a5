package boot

import (
	"fmt"
	"strings"
)

// script returns the iPXE script that fetches the kernel and the image below a URL and starts them.
// A client that fails restarts, so that its substrate notices. UEFI firmware passes the image on by
// its name on the command line, BIOS ignores that word. On UEFI the command line begins with the
// name of the kernel, and Linux passes words that it does not know on to init, except ones with a
// dot.
func script(base, cmdline string) (File, error) {
	for _, r := range cmdline {
		if r < ' ' || r > '~' || strings.ContainsRune(special, r) {
			return File{}, fmt.Errorf("boot: the kernel command line %q contains %q, which is special in an iPXE script", cmdline, r)
		}
	}
	text := fmt.Sprintf(`#!ipxe
kernel --name linux.efi %[1]s%[2]s initrd=image %[4]s || goto failed
initrd --name image %[1]s%[3]s || goto failed
boot || goto failed
:failed
echo The boot over the network has failed
reboot
`, base, KernelPath, ImagePath, cmdline)
	return File{strings.NewReader(text), int64(len(text))}, nil
}

// special are the characters that iPXE does not pass on unchanged.
const special = "$#&|\"'\\"

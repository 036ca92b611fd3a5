package boot

import (
	"cmp"
	"fmt"
	"strings"
)

// base is the address of the files.
func (c Config) base() string { return "http://" + c.Server.Addr().String() }

// script returns the iPXE script that fetches a kernel and an image by their paths and starts them.
// A client that fails restarts, so that its substrate notices. UEFI firmware passes the image on by
// its name on the command line, BIOS ignores that word. On UEFI the command line begins with the
// name of the kernel, and Linux passes words that it does not know on to init, except ones with a
// dot. A configuration is fetched first, and Linux unpacks it before the image.
func (c Config) script(cmdline, kernel, image string) (File, error) {
	for _, r := range cmdline {
		if r < ' ' || r > '~' || strings.ContainsRune(special, r) {
			return File{}, fmt.Errorf("boot: the kernel command line %q contains %q, which is special in an iPXE script", cmdline, r)
		}
	}
	words, first := "initrd=image", ""
	if c.Node != nil {
		words, first = "initrd=config initrd=image", fmt.Sprintf("initrd --name config %s%s || goto failed\n", c.base(), ConfigPath)
	}
	return text(fmt.Sprintf(`#!ipxe
%[5]skernel --name linux.efi %[1]s%[2]s %[6]s %[4]s || goto failed
initrd --name image %[1]s%[3]s || goto failed
boot || goto failed
:failed
echo The boot over the network has failed
reboot
`, c.base(), kernel, image, cmdline, first, words)), nil
}

// waitSeconds is the time between two requests of a guest.
const waitSeconds = 5

// waiting is what a guest shows.
func waiting(h Host) string {
	return cmp.Or(h.Says, fmt.Sprintf("This machine is not a node yet. On the service host: margay node approve %v", h.MAC))
}

// waitingScript returns the script of a guest, which asks for an address and a script again and
// again. As a node it gets others.
func (s *Services) waitingScript(h Host) File {
	return text(fmt.Sprintf(`#!ipxe
echo %[1]s
:again
sleep %[2]d
dhcp || goto again
chain --replace %[3]s || goto again
`, waiting(h), waitSeconds, s.locations[ByScript]))
}

// laterScript returns the script of a node whose turn it is not, which asks for the script again.
// The answer to that takes up to turnWait.
func (s *Services) laterScript(before int) File {
	return text(fmt.Sprintf(`#!ipxe
echo This node waits while others fetch the node image. %[1]d wait before it.
chain --replace %[3]s || goto again
:again
sleep %[2]d
dhcp || goto again
chain --replace %[3]s || goto again
`, before, waitSeconds, s.locations[ByScript]))
}

func text(s string) File { return File{strings.NewReader(s), int64(len(s))} }

// special are the characters that iPXE does not pass on unchanged.
const special = "$#&|\"'\\"

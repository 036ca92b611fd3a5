package boot

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/insomniacslk/dhcp/iana"

	"margay/kernel/abi/node"
)

// Client is what the program of a DHCP client says of itself. All of it is untrusted.
type Client struct {
	Class string // its vendor class (RFC 2132, option 60)
	User  string // its user class (RFC 3004, option 77), as it was sent
	Archs string // the architectures that it boots (RFC 4578, option 93), as they were sent
}

// Means is what a client boots from, and how it fetches that.
type Means int

// The means.
const (
	Nothing  Means = iota // there is nothing for it
	ByScript              // the script, by HTTP
	ByBIOS                // an iPXE for a BIOS, by TFTP
	ByUEFI                // an iPXE for UEFI, by TFTP
	ByHTTP                // an iPXE for UEFI, by HTTP
	ByItself              // its own disk: it runs, and fetches its configuration by HTTP
)

// configured reports whether a client fetches its configuration next.
func (m Means) configured() bool { return m == ByScript || m == ByItself }

// The vendor classes of firmware that boots over the network begin with these (RFC 4578, section 3;
// UEFI 2.10, section 24.7).
const (
	classPXE  = "PXEClient"
	classHTTP = "HTTPClient"
)

// userIPXE is the user class of iPXE. A node that has booted from a disk has the one of package
// node, and names no architecture: it runs already.
const userIPXE = "iPXE"

// means are those for the architectures of x86-64 and the first of the vendor classes. Much
// firmware for x86-64 calls itself EFI byte code.
var means = map[string]map[iana.Arch]Means{
	classPXE:  {iana.INTEL_X86PC: ByBIOS, iana.EFI_X86_64: ByUEFI, iana.EFI_BC: ByUEFI},
	classHTTP: {iana.EFI_X86_64_HTTP: ByHTTP, iana.EFI_BC_HTTP: ByHTTP},
	userIPXE: {
		iana.INTEL_X86PC: ByScript, iana.EFI_X86_64: ByScript, iana.EFI_BC: ByScript, iana.EFI_X86_64_HTTP: ByScript, iana.EFI_BC_HTTP: ByScript,
	},
}

// Means returns what the client boots from; for Nothing it says why.
func (c Client) Means() (m Means, why string) {
	kind := c.kind()
	if kind == node.UserClass {
		return ByItself, ""
	}
	if kind == "" {
		return Nothing, "it does not boot over the network: it is neither PXE, UEFI HTTP boot nor iPXE"
	}
	archs := c.archs()
	if len(archs) == 0 && kind == userIPXE {
		return ByScript, ""
	}
	for _, arch := range archs {
		if m := means[kind][arch]; m != Nothing {
			return m, ""
		}
	}
	if len(archs) == 0 {
		return Nothing, "it does not name its processor"
	}
	return Nothing, fmt.Sprintf("it boots another processor than this machine has: %v", archs[0])
}

// kind is the key in means; empty: the client does not boot over the network.
func (c Client) kind() string {
	switch {
	case c.hasUser(node.UserClass):
		return node.UserClass
	case c.hasUser(userIPXE):
		return userIPXE
	case c.isClass(classHTTP):
		return classHTTP
	case c.isClass(classPXE):
		return classPXE
	}
	return ""
}

// isClass reports whether the client's vendor class is one, alone or with details after a colon.
func (c Client) isClass(class string) bool {
	rest, ok := strings.CutPrefix(c.Class, class)
	return ok && (rest == "" || rest[0] == ':')
}

// hasUser reports whether a user class is among the client's. Some clients, iPXE among them, send
// one as it is, and not a list of classes after their lengths.
func (c Client) hasUser(class string) bool {
	if c.User == class {
		return true
	}
	for rest := c.User; len(rest) > 0; {
		n := int(rest[0])
		if n == 0 || n >= len(rest) {
			return false
		}
		if rest[1:1+n] == class {
			return true
		}
		rest = rest[1+n:]
	}
	return false
}

// archs are the client's architectures; if it does not list them, the one in its vendor class.
func (c Client) archs() []iana.Arch {
	var all []iana.Arch
	for rest := c.Archs; len(rest) >= 2; rest = rest[2:] {
		all = append(all, iana.Arch(binary.BigEndian.Uint16([]byte(rest))))
	}
	if len(all) > 0 {
		return all
	}
	_, rest, _ := strings.Cut(c.Class, ":Arch:")
	number, _, _ := strings.Cut(rest, ":")
	if arch, err := strconv.ParseUint(number, 10, 16); err == nil {
		return []iana.Arch{iana.Arch(arch)}
	}
	return nil
}

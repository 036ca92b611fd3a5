package boot

import (
	"strings"
	"testing"
)

func TestMeans(t *testing.T) {
	const bios, uefi, http = "PXEClient:Arch:00000:UNDI:002001", "PXEClient:Arch:00007:UNDI:003016", "HTTPClient:Arch:00016:UNDI:003001"
	for _, c := range []struct {
		name   string
		client Client
		want   Means
		why    string
	}{
		{"BIOS", Client{Class: bios, Archs: "\x00\x00"}, ByBIOS, ""},
		{"UEFI", Client{Class: uefi, Archs: "\x00\x07"}, ByUEFI, ""},
		{"UEFI that calls itself byte code", Client{Class: "PXEClient:Arch:00009", Archs: "\x00\x09"}, ByUEFI, ""},
		{"UEFI HTTP boot", Client{Class: http, Archs: "\x00\x10"}, ByHTTP, ""},
		{"class alone", Client{Class: "PXEClient", Archs: "\x00\x07"}, ByUEFI, ""},
		{"architecture in the class", Client{Class: uefi}, ByUEFI, ""},
		{"HTTP architecture in the class", Client{Class: http}, ByHTTP, ""},
		{"the second of two architectures", Client{Class: "PXEClient", Archs: "\x00\x06\x00\x07"}, ByUEFI, ""},
		{"the first of two architectures", Client{Class: "PXEClient", Archs: "\x00\x00\x00\x07"}, ByBIOS, ""},
		{"iPXE on a BIOS", Client{Class: bios, User: "iPXE", Archs: "\x00\x00"}, ByScript, ""},
		{"iPXE on UEFI", Client{Class: uefi, User: "iPXE", Archs: "\x00\x07"}, ByScript, ""},
		{"iPXE after UEFI HTTP boot", Client{Class: http, User: "iPXE", Archs: "\x00\x10"}, ByScript, ""},
		{"iPXE alone", Client{User: "iPXE"}, ByScript, ""},
		{"iPXE in a list", Client{User: "\x03abc\x04iPXE", Class: uefi}, ByScript, ""},
		{"a node that runs", Client{User: "\x06Margay"}, ByItself, ""},
		{"a node that runs on another processor", Client{User: "\x06Margay", Archs: "\x00\x0b"}, ByItself, ""},
		{"another user class", Client{User: "\x04gPXE", Class: uefi}, ByUEFI, ""},
		{"a list that is cut off", Client{User: "\x05iPXE", Class: uefi}, ByUEFI, ""},
		{"a list with nothing in it", Client{User: "\x00\x04iPXE", Class: uefi}, ByUEFI, ""},
		{"UEFI of 32 bits", Client{Class: "PXEClient", Archs: "\x00\x06"}, Nothing, "it boots another processor than this machine has: EFI IA32"},
		{"ARM", Client{Class: "PXEClient:Arch:00011", Archs: "\x00\x0b"}, Nothing, "EFI ARM64"},
		{"HTTP for ARM", Client{Class: "HTTPClient", Archs: "\x00\x13"}, Nothing, "EFI ARM64"},
		{"iPXE for ARM", Client{User: "iPXE", Archs: "\x00\x0b"}, Nothing, "EFI ARM64"},
		{"HTTP class, PXE architecture", Client{Class: "HTTPClient", Archs: "\x00\x07"}, Nothing, "another processor"},
		{"a number that is unknown", Client{Class: "PXEClient", Archs: "\xff\xff"}, Nothing, "another processor"},
		{"no architecture", Client{Class: "PXEClient"}, Nothing, "it does not name its processor"},
		{"half an architecture", Client{Class: "PXEClient", Archs: "\x00"}, Nothing, "it does not name"},
		{"Linux", Client{Class: "dhcpcd-9.4.1:Linux-6.1"}, Nothing, "it does not boot over the network"},
		{"nothing", Client{}, Nothing, "it does not boot over the network"},
		{"longer class", Client{Class: "PXEClients", Archs: "\x00\x07"}, Nothing, "it does not boot over the network"},
	} {
		if got, why := c.client.Means(); got != c.want || !strings.Contains(why, c.why) || (why == "") != (got != Nothing) {
			t.Errorf("%s: %d, %q; want %d, %q", c.name, got, why, c.want, c.why)
		}
	}
}

// FuzzMeans: whatever a client says, it gets what fits its words, or a reason.
func FuzzMeans(f *testing.F) {
	f.Add("PXEClient:Arch:00007:UNDI:003016", "", "\x00\x07")
	f.Add("HTTPClient:Arch:00016:UNDI:003001", "\x04iPXE", "\x00\x10\x00\x07")
	f.Add("", "\x06Margay", "")
	f.Add("PXEClient:Arch:99999", "iPXE", "\x00")
	f.Fuzz(func(t *testing.T, class, user, archs string) {
		got, why := Client{Class: class, User: user, Archs: archs}.Means()
		words := map[Means]string{ByScript: user, ByItself: user, ByBIOS: class, ByUEFI: class, ByHTTP: class}[got]
		want := map[Means]string{ByScript: "iPXE", ByItself: "Margay", ByBIOS: "PXEClient", ByUEFI: "PXEClient", ByHTTP: "HTTPClient"}[got]
		if (why == "") != (got != Nothing) || !strings.Contains(words, want) {
			t.Errorf("%q, %q, %q: %d, %q", class, user, archs, got, why)
		}
	})
}

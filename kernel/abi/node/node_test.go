package node

import (
	"net/netip"
	"reflect"
	"testing"
)

var good = Config{
	Machine: "m", Node: 3, Substrate: "qemu", Profile: "isolated", MAC: "52:54:00:00:00:03", Address: "10.66.0.5/16",
	MTU: 1500, Fabric: UDP, Serve: "10.66.0.1:7117", CA: []byte{1, 2}, Token: "secret",
}

func TestRoundTrip(t *testing.T) {
	text, err := good.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil || !reflect.DeepEqual(got, good) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"machine": func(c *Config) { c.Machine = "../m" },
		"mac":     func(c *Config) { c.MAC = "52:54" },
		"its mac": func(c *Config) { c.ServeMAC = "52:54" },
		"address": func(c *Config) { c.Address = "10.66.0.5" },
		"family":  func(c *Config) { c.Address = "fd00::1/64" },
		"serve":   func(c *Config) { c.Serve = "somewhere" },
		"fabric":  func(c *Config) { c.Fabric = "tcp," },
		"cores":   func(c *Config) { c.Cores = -1 },
	} {
		c := good
		spoil(&c)
		if _, err := c.Encode(); err == nil {
			t.Errorf("bad %s was accepted", name)
		}
	}
}

// A node in the network of its host has no interface of its own.
func TestHost(t *testing.T) {
	c := good
	c.MAC = ""
	if _, err := c.Encode(); err == nil {
		t.Error("no MAC was accepted")
	}
	c.Host = "a"
	if _, err := c.Encode(); err != nil {
		t.Error(err)
	}
}

func TestFabric(t *testing.T) {
	for _, name := range []string{"", "tcp", "tcp-trusted", "udp", "udp-trusted"} {
		c := good
		c.Fabric = name
		if _, err := c.Encode(); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckFabric("UDP"); err == nil || err.Error() != `there is no fabric "UDP": use tcp, tcp-trusted, udp or udp-trusted` {
		t.Errorf("error %v", err)
	}
}

func FuzzParse(f *testing.F) {
	text, err := good.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := Parse(text); err == nil {
			c.Prefix() // must not panic on what was accepted
		}
	})
}

// The hardware addresses of other nodes, and of serve, follow from their addresses.
func TestNeighbour(t *testing.T) {
	c := Config{MAC: "52:54:00:66:00:05", Address: "10.66.1.5/16", Serve: "10.66.0.1:7117", ServeMAC: "52:54:00:ff:ff:01"}
	for address, want := range map[string]string{
		"10.66.0.1": "52:54:00:ff:ff:01", "10.66.1.0": "52:54:00:66:00:00", "10.66.1.5": "52:54:00:66:00:05", "10.66.5.3": "52:54:00:66:04:03",
		"10.67.1.0": "", "::1": "",
	} {
		if mac, ok := c.Neighbour(netip.MustParseAddr(address)); ok != (want != "") || mac.String() != want {
			t.Errorf("%s: %v, %v", address, mac, ok)
		}
	}
	c.ServeMAC = ""
	if mac, ok := c.Neighbour(netip.MustParseAddr("10.66.1.0")); ok {
		t.Errorf("it follows that the address is %v", mac)
	}
}

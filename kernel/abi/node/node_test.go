package node

import (
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

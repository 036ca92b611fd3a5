package starter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/kernel/abi/node"
)

func TestOffer(t *testing.T) {
	want := Offer{Protocol: control.Version, Version: "1.2", Arch: "amd64", Address: "10.0.0.7", CPUs: 3, Memory: 1 << 30}
	line, err := want.line()
	if err != nil {
		t.Fatal(err)
	}
	var noise bytes.Buffer
	r := bufio.NewReader(strings.NewReader("Welcome to a\n" + strings.Repeat("x", 9000) + "\n" + string(line) + "the console"))
	got, err := ReadOffer(r, &noise)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "the console" {
		t.Errorf("the console begins with %q", rest)
	}
	if text := noise.String(); !strings.HasPrefix(text, "Welcome to a\n") || len(text) != 9014 {
		t.Errorf("%d bytes of noise, %.20q", len(text), text)
	}
}

// offered begins an offer of this version.
var offered = fmt.Sprintf(`{"protocol":%d,`, control.Version)

func TestBadOffers(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "it ended without an offer",
		"sh: nodekernel: not found": "it ended without an offer",
		mark + `{"protocol":4`:      "it ended without an offer",
		mark + "{\n":                "its offer of a node: unexpected end",
		mark + offered + `"address":"10.0.0.7","cpus":0}` + "\n":             "0 CPUs",
		mark + offered + `"address":"10.0.0.7","cpus":5000}` + "\n":          "5000 CPUs",
		mark + offered + `"address":"0.0.0.0","cpus":1}` + "\n":              `"0.0.0.0" is not the IPv4 address`,
		mark + offered + `"address":"::1","cpus":1}` + "\n":                  `"::1" is not the IPv4 address`,
		mark + offered + `"address":"evil\u001b[2J","cpus":1}` + "\n":        "is not the IPv4 address",
		mark + offered + `"address":"10.0.0.7","cpus":1,"memory":-1}` + "\n": "-1 bytes of memory",
		mark + `{"arch":"` + strings.Repeat("a", 20000) + `"}` + "\n":        "it ended without an offer",
		strings.Repeat(strings.Repeat("n", 1000)+"\n", 70) + mark + "":       "more than 64 KiB before",
	} {
		_, err := ReadOffer(bufio.NewReader(strings.NewReader(text)), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

func FuzzReadOffer(f *testing.F) {
	for _, text := range []string{"", "motd\n", mark + offered + `"address":"10.0.0.7","cpus":2}` + "\n", mark + `{"error":"x"}` + "\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := ReadOffer(bufio.NewReader(bytes.NewReader(text)), io.Discard)
		if err == nil && o.Error == "" && o.Protocol == control.Version {
			c := config()
			c.Address, c.Cores = o.Address+"/32", o.CPUs
			if _, err := c.Encode(); err != nil {
				t.Errorf("an offer that no node can have: %+v: %v", o, err)
			}
		}
	})
}

func config() node.Config {
	return node.Config{Machine: "m", Substrate: node.Hosted, Host: "a", Address: "10.0.0.7/32", Serve: "10.0.0.1:7117", Token: "secret"}
}

// A configuration is one line, whatever is in it.
func TestConfiguration(t *testing.T) {
	want := config()
	want.Lacks = []string{"two\nlines"}
	text, err := Configuration(want)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader("\n\n")))
	got, err := readConfiguration(r)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", `{"machine":"m"`, "{}\n", "\n"} {
		if got, err := readConfiguration(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// A holder is gone when it has been silent for a minute of ticks in a row.
func TestSilence(t *testing.T) {
	var s silence
	for range 3 {
		for range mostSilent {
			if s.tick() {
				t.Fatal("it is gone too early")
			}
		}
		s.beat()
	}
	for range mostSilent {
		s.tick()
	}
	if !s.tick() {
		t.Error("it is never gone")
	}
}

// A node ends when its holder's connection does; the end of the node itself comes back.
func TestHold(t *testing.T) {
	r, w := io.Pipe()
	ended := make(chan error, 1)
	held := make(chan error, 1)
	go func() { held <- hold(r, ended) }()
	for range 3 {
		if _, err := w.Write([]byte{Beat}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if err := <-held; err == nil || !strings.Contains(err.Error(), "the holder of the machine is gone") {
		t.Error(err)
	}
	r, w = io.Pipe()
	defer w.Close()
	off := errors.New("exit status 3")
	ended <- off
	if err := hold(r, ended); err != off {
		t.Error(err)
	}
}

// A host that does not reach serve, or whose holder goes away before it has configured the node,
// starts nothing.
func TestRunWithoutNode(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	offer := func(serve string) (Offer, error) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		ran := Run(Config{Serve: serve, Program: "/nonexistent", Version: "v", In: strings.NewReader(""), Out: w})
		w.Close()
		o, err := ReadOffer(bufio.NewReader(r), io.Discard)
		if err != nil {
			t.Error(err)
		}
		return o, ran
	}
	o, err := offer(l.Addr().String())
	if o.Address != "127.0.0.1" || o.CPUs < 1 || o.Protocol != control.Version || o.Version != "v" || !errors.Is(err, io.EOF) {
		t.Errorf("%+v, %v", o, err)
	}
	l.Close()
	o, err = offer("127.0.0.1:1") // nothing listens there, and Linux gives that port to no socket
	if !strings.Contains(o.Error, "it does not reach the machine's serve") || err == nil || err.Error() != o.Error {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestGivenMemory(t *testing.T) {
	for _, k := range []struct {
		node, cpu, cpus string
		mib             int64
	}{
		{"", "", "", 0},
		{"1000", "", "4", 1000},
		{"0", "100", "4", 400},
		{"", "100", "", 0},
		{"-5", "x", "4", 0},
		{"9223372036854775807", "", "", 0},
		{"", "1073741824", "999999999", maxMiB},
	} {
		env := map[string]string{"SLURM_MEM_PER_NODE": k.node, "SLURM_MEM_PER_CPU": k.cpu, "SLURM_CPUS_ON_NODE": k.cpus}
		if got := givenMemory(func(name string) string { return env[name] }); got != k.mib<<20 {
			t.Errorf("%+v: %d", k, got)
		}
	}
}

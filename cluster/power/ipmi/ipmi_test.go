package ipmi

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/cluster/power"
	"margay/cluster/power/powertest"
)

// bmc plays a controller. Its fields are set before it answers.
type bmc struct {
	hardware powertest.Hardware
	suite    suite // that it has
	user     string
	password string
	lose     int                 // how many packets it loses first
	twice    bool                // it sends each answer twice, the second time with what it sends of itself
	spoil    func([]byte) []byte // changes each answer; nil: it does not
	code     byte                // completion code of all commands
	trusting bool                // it accepts every proof

	conn net.PacketConn
	mu   sync.Mutex
	ends int // sessions that were ended

	proof    proof
	keys     keys
	sequence uint32
	did      []byte // the last request of the session
}

func play(t *testing.T, b *bmc) Controller {
	t.Helper()
	var err error
	if b.conn, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		b.conn.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		buffer := make([]byte, maxPacket)
		for {
			n, from, err := b.conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if b.lose--; b.lose >= 0 {
				continue
			}
			answer := b.answer(buffer[:n])
			if b.spoil != nil && answer != nil {
				answer = b.spoil(answer)
			}
			for range 1 + map[bool]int{true: 1}[b.twice] {
				_, _ = b.conn.WriteTo(answer, from)
			}
		}
	}()
	return Controller{Address: b.conn.LocalAddr().String(), User: "operator", Password: "secret"}
}

func (b *bmc) answer(p []byte) []byte {
	t, _, body, _, err := cut(p)
	if err != nil {
		return nil
	}
	own := []byte{9, 8, 7, 6} // its name of each session
	head := func(status byte) []byte { return append([]byte{body[0], status, 0, 0}, b.proof.own...) }
	switch t {
	case typeOpenRequest:
		if body[12] != b.suite.authentication || body[20] != b.suite.integrity {
			return plain(typeOpenResponse, []byte{body[0], 0x11})
		}
		b.proof = proof{suite: b.suite, key: []byte(b.password), own: bytes.Clone(body[4:8]), remote: own}
		return plain(typeOpenResponse, append(append(head(0), own...), body[8:32]...))
	case typeRAKP1:
		b.proof.random, b.proof.theirs, b.proof.guid = bytes.Clone(body[8:24]), bytes.Repeat([]byte{5}, 16), bytes.Repeat([]byte{6}, 16)
		b.proof.role = append([]byte{body[24]}, body[27:]...)
		if string(body[28:]) != b.user {
			return plain(typeRAKP2, head(0x0d))
		}
		return plain(typeRAKP2, bytes.Join([][]byte{head(0), b.proof.theirs, b.proof.guid, b.proof.controller()}, nil))
	case typeRAKP3:
		if !b.trusting && !bytes.Equal(body[8:], b.proof.console()) {
			return plain(typeRAKP4, head(0x0f))
		}
		sik := b.proof.session()
		b.keys, b.sequence = newKeys(b.suite, sik), 0
		b.did = nil
		return plain(typeRAKP4, append(head(0), b.proof.last(sik)...))
	}
	m, err := b.keys.open(p, binary.LittleEndian.Uint32(own))
	if err != nil {
		return nil
	}
	again := bytes.Equal(m, b.did) // real controllers recognise a repetition by its number, too
	b.did = bytes.Clone(m)
	answer := []byte{addressConsole, m[1] | 4}
	answer = append(answer, checksum(answer))
	data := append([]byte{addressBMC, m[4], m[5], b.code}, b.command(m[1]>>2, m[5], m[6:len(m)-1], again)...)
	answer = append(append(answer, data...), checksum(data))
	b.sequence++
	return b.keys.seal(binary.LittleEndian.Uint32(b.proof.own), b.sequence, answer)
}

func (b *bmc) command(function, command byte, data []byte, again bool) []byte {
	switch {
	case function == functionApp && command == commandCloseSession:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ends++
	case function == functionChassis && command == commandChassisStatus:
		if on, _ := b.hardware.State(); on {
			return []byte{0x21, 0, 0}
		}
		return []byte{0x20, 0, 0}
	case function == functionChassis && command == commandChassisControl && !again:
		b.hardware.Do(map[byte]power.Action{0: power.SwitchOff, 1: power.SwitchOn, 3: power.Reset}[data[0]])
	}
	return nil
}

// Both suites satisfy the contract, also over a network that loses and repeats packets.
func TestContract(t *testing.T) {
	for i, u := range suites {
		b := &bmc{suite: u, user: "operator", password: "secret", lose: i, twice: true}
		powertest.Contract(t, play(t, b), &b.hardware)
		b.mu.Lock()
		if b.ends < 10 {
			t.Errorf("suite %d: only %d sessions were ended", i, b.ends)
		}
		b.mu.Unlock()
	}
}

// Errors name the controller and the cause.
func TestRefusals(t *testing.T) {
	good := bmc{suite: suites[0], user: "operator", password: "secret"}
	for name, c := range map[string]struct {
		change func(*bmc)
		want   string
	}{
		"wrong password": {func(b *bmc) { b.password = "other" }, "the password is wrong"},
		"wrong user":     {func(b *bmc) { b.user = "admin" }, "it does not know the user"},
		"impostor":       {func(b *bmc) { b.password, b.trusting = "other", true }, "the password is wrong, or something else answers for it"},
		"no suite":       {func(b *bmc) { b.suite = suite{authentication: 77} }, "it refuses the session with status 0x11"},
		"no privilege":   {func(b *bmc) { b.code = 0xd4 }, "it needs the privilege level Operator"},
	} {
		b := &bmc{suite: good.suite, user: good.user, password: good.password}
		c.change(b)
		ctx, cancel := context.WithTimeout(t.Context(), powertest.Patience)
		if _, err := play(t, b).Status(ctx); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "IPMI at 127.0.0.1:") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// A controller that does not answer, or answers nonsense, costs no more than the time for the
// action, and its error says so.
func TestNonsense(t *testing.T) {
	late := errors.New("timed out")
	for name, spoil := range map[string]func([]byte) []byte{
		"silent":    func([]byte) []byte { return nil },
		"short":     func(p []byte) []byte { return p[:len(p)-1] },
		"truncated": func(p []byte) []byte { return p[:7] },
		"long":      func(p []byte) []byte { return append(p, make([]byte, 2000)...) },
		"other tag": func(p []byte) []byte { p[headerLength]++; return p },
		"to another": func(p []byte) []byte {
			p[headerLength+5]++
			return p
		},
		"changed": func(p []byte) []byte {
			if p[5] == byte(typeMessage|encrypted|authenticated) {
				p[30]++
			}
			return p
		},
	} {
		b := &bmc{suite: suites[0], user: "operator", password: "secret", spoil: spoil}
		c := play(t, b)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, late)
		if err := c.Off(ctx); !errors.Is(err, late) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), powertest.Patience)
	defer cancel()
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	if _, err := (Controller{Address: free.LocalAddr().String()}).Status(ctx); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nothing listens: %v", err)
	}
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The proofs, keys and packets of a session between ipmitool and ipmi_sim, cipher suite 3.
func TestKnownSession(t *testing.T) {
	p := proof{
		suite: suites[1], key: []byte("test"), own: unhex(t, "a4a3a2a0"), remote: unhex(t, "02000000"),
		random: unhex(t, "7597577aa2bb473fccea21db2a2f13b6"), theirs: unhex(t, "ccb25b1cf97294b1b0b013264b72e014"),
		guid: unhex(t, "a123456789abcdefa123456789abcdef"), role: append([]byte{0x14, 7}, "ipmiusr"...),
	}
	sik := p.session()
	for what, c := range map[string]struct {
		got  []byte
		want string
	}{
		"RAKP 2": {p.controller(), "c7de30940a193dceee60bd5f3e8ff308e73cff4c"},
		"RAKP 3": {p.console(), "584935cdc932fd49c986fc7a11f3fd91528811e6"},
		"SIK":    {sik, "b1d254ad625a772f5c4a02cbbb8364bfb32d7ea0"},
		"RAKP 4": {p.last(sik), "c13d7996a39d8374aa3b511c"},
		"K1":     {newKeys(p.suite, sik).sign, "909dbf12f1da05a481a66beabd4ecd45634d805c"},
	} {
		if hex.EncodeToString(c.got) != c.want {
			t.Errorf("%s is %x, not %s", what, c.got, c.want)
		}
	}
	k := newKeys(p.suite, sik)
	sent := unhex(t, knownRequest)
	m, err := k.open(sent, 2)
	r := request{function: functionApp, command: commandSetPrivilege, number: 1, data: []byte{4}}
	if err != nil || !bytes.Equal(m, r.encode()) {
		t.Errorf("the request is %x, %v, not %x", m, err, r.encode())
	}
	if m, err = k.open(unhex(t, knownAnswer), binary.LittleEndian.Uint32(p.own)); err != nil {
		t.Fatalf("the answer: %v", err)
	}
	if data, err := r.answer(m); err != nil || !bytes.Equal(data, []byte{4}) {
		t.Errorf("the answer is %x, %v", data, err)
	}
	for _, other := range []request{{function: functionApp, command: commandSetPrivilege, number: 2}, {function: functionApp, number: 1}, {command: commandSetPrivilege, number: 1}} {
		if _, err := other.answer(m); !errors.Is(err, errPacket) {
			t.Errorf("it answers %v, too: %v", other, err)
		}
	}
	for i := len(rmcp); i < len(sent); i++ { // each byte behind RMCP's is protected
		sent[i] ^= 0x10
		if _, err := k.open(sent, 2); err == nil {
			t.Errorf("a packet with byte %d changed is accepted", i)
		}
		sent[i] ^= 0x10
	}
}

const (
	knownRequest = "0600ff07 06c00200 00000300 00002000 d3419ffe02774fab2dfd67c2079d8d3e ccf1d4c94f4898b28a4f3e5e9f7ff355 ffff0207 4005c807aee0b0d6b0a1f897"
	knownAnswer  = "0600ff07 06c0a4a3 a2a00100 00002000 da166f7a42e116734c5d94f3aab47c75 964a430416c8a6747bea493af7432b90 ffff0207 0f66cb7f7730556f267770ee"
)

// No packet makes the reader fail, whatever the key; and what seal makes, open reads.
func FuzzOpen(f *testing.F) {
	f.Add(unhex(f, knownRequest), uint32(2))
	f.Add(unhex(f, knownAnswer), uint32(0))
	f.Add([]byte{}, uint32(1))
	f.Fuzz(func(t *testing.T, p []byte, number uint32) {
		for _, u := range suites {
			k := newKeys(u, []byte("key"))
			if m, err := k.open(p, number); err == nil {
				t.Errorf("a packet without the key is taken for %x", m)
			}
			m, err := k.open(k.seal(number, 7, p), number)
			if len(p) < 1000 && (err != nil || !bytes.Equal(m, p)) {
				t.Errorf("%x comes out as %x, %v", p, m, err)
			}
		}
		r := request{number: byte(number % 64), data: p}
		_, _ = r.answer(p)
		_, _ = r.answer(r.encode())
	})
}

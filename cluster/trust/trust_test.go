package trust

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/kernel/abi/id"
)

// handshake connects both configurations over loopback, and sees to it that each side has judged
// the other.
func handshake(t *testing.T, accept, connect *tls.Config) (server, client tls.ConnectionState, err error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", accept)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	verdict := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.(*tls.Conn).Handshake()
			server = c.(*tls.Conn).ConnectionState()
			c.Close()
		}
		verdict <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), connect)
	if err == nil {
		client = c.ConnectionState()
		c.Close()
	}
	return server, client, cmp.Or(<-verdict, err)
}

func node(t *testing.T, a *Authority, number id.Node) (accept, connect *tls.Config) {
	t.Helper()
	key, err := NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.Public()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.Certify(number, public)
	if err != nil {
		t.Fatal(err)
	}
	accept, connect, err = BetweenNodes(a.Certificate(), key, cert)
	if err != nil {
		t.Fatal(err)
	}
	return accept, connect
}

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestNodeToServe(t *testing.T) {
	a := authority(t)
	path := filepath.Join(t.TempDir(), "key")
	if err := a.Save(path); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	serve, err := loaded.ServeTLS()
	if err != nil {
		t.Fatal(err)
	}
	toServe, err := ToServe(a.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := handshake(t, serve, toServe); err != nil {
		t.Error(err)
	}
	stranger, err := authority(t).ServeTLS()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := handshake(t, stranger, toServe); err == nil {
		t.Error("a node talks to the serve of another machine")
	}
	accept, _ := node(t, a, 1)
	if _, _, err := handshake(t, accept, toServe); err == nil {
		t.Error("a node can pass for serve")
	}
}

func TestBetweenNodes(t *testing.T) {
	a := authority(t)
	accept, _ := node(t, a, 1)
	_, connect := node(t, a, 42)
	s, c, err := handshake(t, accept, connect)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := PeerNode(s); err != nil || n != 42 {
		t.Error(n, err)
	}
	if n, err := PeerNode(c); err != nil || n != 1 {
		t.Error(n, err)
	}
	_, stranger := node(t, authority(t), 42)
	if _, _, err := handshake(t, accept, stranger); err == nil {
		t.Error("a node of another machine is accepted")
	}
	if _, _, err := handshake(t, accept, &tls.Config{InsecureSkipVerify: true}); err == nil {
		t.Error("a node without a certificate is accepted")
	}
	toServe, err := ToServe(a.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	toServe.ServerName = nodeName
	if _, _, err := handshake(t, accept, toServe); err == nil {
		t.Error("a node without a certificate is accepted")
	}
}

func TestTokens(t *testing.T) {
	a, b := NewToken(), NewToken()
	if SameToken(a, b) || !SameToken(a, a) || len(a) != 32 {
		t.Error(a, b)
	}
}

// A token admits one node, in one term of its number, to one machine.
func TestNodeToken(t *testing.T) {
	seen := make(map[string]string)
	for _, secret := range []string{"", "secret", NewToken()} {
		for _, node := range []id.Node{0, 1, 11, 999, 1<<32 - 1} {
			for _, term := range []uint32{0, 1, 11, 1<<32 - 1} {
				who := fmt.Sprintf("node %d, term %d of %q", node, term, secret)
				token := NodeToken(secret, node, term)
				if other := seen[token]; other != "" || token != NodeToken(secret, node, term) || len(token) != 64 {
					t.Errorf("%s has the token %s, %s too", who, token, other)
				}
				seen[token] = who
			}
		}
	}
}

func TestTokenIsCompared(t *testing.T) {
	token := NewToken()
	for _, other := range []string{"", token[1:], token + "0", strings.ToUpper(token) + " ", "x" + token[1:]} {
		if SameToken(token, other) {
			t.Errorf("%q passes for %q", other, token)
		}
	}
}

func TestKeyFile(t *testing.T) {
	a := authority(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := a.Save(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is in a file of mode %v, %v", info.Mode(), err)
	}
	if b, err := Load(path); err != nil || !bytes.Equal(a.Certificate(), b.Certificate()) {
		t.Errorf("loaded %v, %v", b, err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("target", link); err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{path, link} {
		if err := authority(t).Save(taken); !errors.Is(err, os.ErrExist) {
			t.Errorf("saved where there is something: %v", err)
		}
	}
	if b, err := Load(path); err != nil || !bytes.Equal(a.Certificate(), b.Certificate()) {
		t.Errorf("then loaded %v, %v", b, err)
	}
	if err := a.Save(filepath.Join(dir, "no", "folder")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("saved to nowhere: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("loaded from nowhere: %v", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	if err := authority(t).Save(other); err != nil {
		t.Fatal(err)
	}
	stranger, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.Index(text, []byte("-----BEGIN PRIVATE"))
	for name, bad := range map[string][]byte{
		"empty": nil, "garbage": []byte("garbage"), "half": text[:len(text)/2], "no key": text[:cut], "no certificate": text[cut:],
		"key of another machine": append(bytes.Clone(text[:cut]), stranger[bytes.Index(stranger, []byte("-----BEGIN PRIVATE")):]...), "curve": curveKey(t),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), "trust: load machine key "+path+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// curveKey is a key file of another kind.
func curveKey(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := newTemplate("m")
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
}

func TestBadKeys(t *testing.T) {
	a := authority(t)
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, public := range map[string][]byte{"nothing": nil, "garbage": []byte("garbage"), "curve": curve} {
		if _, err := a.Certify(7, public); err == nil || !strings.HasPrefix(err.Error(), "trust: public key of node7") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ToServe([]byte("garbage")); err == nil {
		t.Error("garbage is a machine's certificate")
	}
	if _, _, err := BetweenNodes(nil, NodeKey{}, nil); err == nil {
		t.Error("nothing is a machine's certificate")
	}
}

func TestPeerNode(t *testing.T) {
	if _, err := PeerNode(tls.ConnectionState{}); err == nil {
		t.Error("nobody is a node")
	}
	for name, ok := range map[string]bool{
		"node 0": true, "node 4294967295": true, "node 4294967296": false, "node -1": false, "node ": false, "node 1 ": false, "serve": false, "1": false,
	} {
		cert := newTemplate(name)
		if n, err := PeerNode(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}); (err == nil) != ok {
			t.Errorf("%q is node %d, %v", name, n, err)
		}
	}
}

// A node's certificate cannot sign another.
func TestNodeIsNoAuthority(t *testing.T) {
	a := authority(t)
	key, err := NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.Public()
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Certify(1, public)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	_, connect, err := BetweenNodes(a.Certificate(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	template := newTemplate("node 2")
	template.DNSNames, template.ExtKeyUsage = cert.DNSNames, cert.ExtKeyUsage
	forged, err := x509.CreateCertificate(rand.Reader, template, cert, key.key.Public(), key.key)
	if err != nil {
		t.Fatal(err)
	}
	good, _ := node(t, a, 3)
	connect.Certificates[0].Certificate = [][]byte{forged, der}
	if _, _, err := handshake(t, good, connect); err == nil {
		t.Error("a node can make others")
	}
}

// A user of another host knows the fingerprint of the machine, and connects to nothing else.
func TestUserToServe(t *testing.T) {
	a, other := authority(t), authority(t)
	accept, err := a.UsersTLS()
	if err != nil {
		t.Fatal(err)
	}
	if _, state, err := handshake(t, accept, ToServeOf(a.Fingerprint())); err != nil || state.DidResume {
		t.Errorf("its own machine: %v, resumed %v", err, state.DidResume)
	}
	plain, err := a.ServeTLS()
	if err != nil {
		t.Fatal(err)
	}
	asNode, _ := node(t, a, 3)
	asNode.ClientAuth = tls.NoClientCert
	asNode.Certificates[0].Certificate = append(asNode.Certificates[0].Certificate, a.Certificate())
	forged, err := other.UsersTLS()
	if err != nil {
		t.Fatal(err)
	}
	forged.Certificates[0].Certificate[1] = a.Certificate()
	another, err := other.UsersTLS()
	if err != nil {
		t.Fatal(err)
	}
	for what, accept := range map[string]*tls.Config{
		"the port of nodes": plain, "a node of the machine": asNode, "another machine with the certificate of this one": forged, "another machine": another,
	} {
		judged := false
		connect := ToServeOf(a.Fingerprint())
		verify := connect.VerifyConnection
		connect.VerifyConnection = func(state tls.ConnectionState) error {
			judged = true
			err := verify(state)
			if !errors.Is(err, ErrOtherMachine) {
				t.Errorf("%s: %v", what, err)
			}
			return err
		}
		if _, _, err := handshake(t, accept, connect); err == nil || !judged {
			t.Errorf("%s is accepted", what)
		}
	}
}

// Package fabrictest is the contract of fabric.Transport as tests that every transport passes, and
// what tests of transports need: certificates of a machine's nodes, and a handler that records its
// calls.
package fabrictest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"margay/kernel/abi/id"
)

// Patience bounds each wait of a test.
const Patience = time.Minute

// Machine makes certificates for the nodes of a test.
type Machine struct {
	pool *x509.CertPool
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

// NewMachine makes a machine with a key of its own.
func NewMachine(t testing.TB) *Machine {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "m"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{pool: x509.NewCertPool(), key: key}
	m.cert, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	m.pool.AddCert(m.cert)
	return m
}

// Credentials returns what a node accepts connections with, and what it connects with.
func (m *Machine) Credentials(t testing.TB, node id.Node) (accept, connect *tls.Config) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: strconv.Itoa(int(node))},
		DNSNames: []string{"node"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, m.cert, pub, m.key)
	if err != nil {
		t.Fatal(err)
	}
	own := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return &tls.Config{Certificates: own, ClientCAs: m.pool, ClientAuth: tls.RequireAndVerifyClientCert},
		&tls.Config{Certificates: own, RootCAs: m.pool, ServerName: "node"}
}

// PeerNode reads a node's number from its certificate.
func PeerNode(s tls.ConnectionState) (id.Node, error) {
	n, err := strconv.Atoi(s.PeerCertificates[0].Subject.CommonName)
	return id.Node(n), err
}

// Recorder is a handler that records its calls, and returns the bytes of each stream after a
// greeting. Mu guards its fields.
type Recorder struct {
	Mu     sync.Mutex
	Frames []string // each with its source: "1:frame"
	Breaks []error
	cond   sync.Cond
}

// NewRecorder makes a recorder.
func NewRecorder() *Recorder {
	r := new(Recorder)
	r.cond.L = &r.Mu
	return r
}

// Frame implements fabric.Handler.
func (r *Recorder) Frame(from id.Node, frame []byte) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Frames = append(r.Frames, fmt.Sprintf("%d:%s", from, frame))
	r.cond.Broadcast()
}

// Broken implements fabric.Handler.
func (r *Recorder) Broken(_ id.Node, err error) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Breaks = append(r.Breaks, err)
	r.cond.Broadcast()
}

// Stream implements fabric.Handler.
func (r *Recorder) Stream(from id.Node, service string, c net.Conn) {
	defer c.Close()
	fmt.Fprintf(c, "node%d wants %s: ", from, service)
	io.Copy(c, c)
}

// Seen returns the frames and breaks so far.
func (r *Recorder) Seen() (frames []string, breaks []error) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.Clone(r.Frames), slices.Clone(r.Breaks)
}

// Await waits until ok holds, which is called with Mu held.
func (r *Recorder) Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	timer := time.AfterFunc(Patience, r.cond.Broadcast)
	defer timer.Stop()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s; %d frames, breaks %v", what, len(r.Frames), r.Breaks)
		}
		r.cond.Wait()
	}
}

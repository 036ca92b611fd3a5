// Package trust has the identities of a machine: its secret and certificates, and the tokens of
// nodes and users.
//
// A machine has one key. Its certificate is given to every node at boot; serve holds the key and
// shows a certificate made with it; a node that has shown its join token gets a certificate with
// its number, for connections between nodes. A node's private key never leaves the node.
//
// The keys of the machine and of serve are Ed25519. Nodes have ECDSA with P-256, because a process
// takes more than a millisecond to make its first key of Ed25519.
//
// A node's join token is made from the machine's secret for its number, so it admits no other node.
// The secret is known to serve and the holder only.
package trust

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"
	"time"

	"margay/kernel/abi/id"
)

// Names in certificates: what a connecting side demands of the other.
const (
	serveName = "serve.margay"
	nodeName  = "node.margay"
)

// validity is how long certificates hold. They end with the machine that made them, so it only has
// to be long enough; the clock of a node may be far off, so it begins early.
const validity = 20 * 365 * 24 * time.Hour

// curves is the one key exchange in use. The default, a hybrid with ML-KEM, costs an emulated node
// tens of milliseconds a connection, and the traffic of a machine is worth nothing once the machine
// is gone.
var curves = []tls.CurveID{tls.X25519}

// Authority is a machine's key.
type Authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

// NewAuthority makes the key of a new machine.
func NewAuthority(machine string) (*Authority, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("trust: make machine key: %w", err)
	}
	template := newTemplate(machine)
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		return nil, fmt.Errorf("trust: make machine certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("trust: make machine certificate: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// Save writes the key to a new file that only its owner can read.
func (a *Authority) Save(path string) error {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return fmt.Errorf("trust: save machine key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("trust: save machine key: %w", err)
	}
	return nil
}

// Load reads a key that Save wrote.
func Load(path string) (*Authority, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("trust: load machine key: %w", err)
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, fmt.Errorf("trust: load machine key %s: %w", path, err)
	}
	key, ok := pair.PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("trust: load machine key %s: it is a %T", path, pair.PrivateKey)
	}
	return &Authority{cert: pair.Leaf, key: key}, nil
}

// Certificate returns the machine's certificate (DER), which is not a secret.
func (a *Authority) Certificate() []byte { return a.cert.Raw }

// Sign signs a statement (Ed25519), which must not be one that means something in a certificate.
func (a *Authority) Sign(statement []byte) []byte { return ed25519.Sign(a.key, statement) }

// Fingerprint is the hash (SHA-256) of a machine's certificate. No two machines have the same one.
type Fingerprint [sha256.Size]byte

// Fingerprint returns the fingerprint of the machine.
func (a *Authority) Fingerprint() Fingerprint { return sha256.Sum256(a.cert.Raw) }

// ServeTLS returns what serve accepts connections with. Clients show no certificate: nodes show the
// join token instead.
func (a *Authority) ServeTLS() (*tls.Config, error) {
	own, err := a.serveCertificate()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: curves, Certificates: []tls.Certificate{own}}, nil
}

// UsersTLS returns what serve accepts users of other hosts with. The machine's certificate goes
// along, since they know no more than its fingerprint. A session is not resumed: each connection
// shows its token. The key exchange is the default, and not curves: neither end is an emulated
// node, and what users send over other networks may be worth something for long.
func (a *Authority) UsersTLS() (*tls.Config, error) {
	own, err := a.serveCertificate()
	if err != nil {
		return nil, err
	}
	own.Certificate = append(own.Certificate, a.cert.Raw)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, SessionTicketsDisabled: true}, nil
}

// serveCertificate makes a key for serve, and a certificate of it.
func (a *Authority) serveCertificate() (own tls.Certificate, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return own, fmt.Errorf("trust: make serve's key: %w", err)
	}
	template := newTemplate("serve")
	template.DNSNames = []string{serveName}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, pub, a.key)
	if err != nil {
		return own, fmt.Errorf("trust: make serve's certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Certify makes the certificate (DER) of a node for its public key (PKIX).
func (a *Authority) Certify(node id.Node, publicKey []byte) ([]byte, error) {
	pub, err := x509.ParsePKIXPublicKey(publicKey)
	if err != nil {
		return nil, fmt.Errorf("trust: public key of node%d: %w", node, err)
	}
	if key, ok := pub.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("trust: public key of node%d is a %T, and not of P-256", node, pub)
	}
	template := newTemplate("node " + strconv.FormatUint(uint64(node), 10))
	template.DNSNames = []string{nodeName}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, pub, a.key)
	if err != nil {
		return nil, fmt.Errorf("trust: certificate of node%d: %w", node, err)
	}
	return der, nil
}

func newTemplate(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system's randomness does not fail
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-validity),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// ToServe returns what a node connects to serve with, given the machine's certificate (DER).
func ToServe(machine []byte) (*tls.Config, error) {
	pool, err := pool(machine)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: curves, RootCAs: pool, ServerName: serveName}, nil
}

// ErrOtherMachine reports that the other side of a connection is not the serve of the machine with
// a fingerprint.
var ErrOtherMachine = errors.New("it is not the serve of the token's machine")

// ToServeOf returns what a user connects with to the serve of the machine with a fingerprint.
func ToServeOf(f Fingerprint) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serveName,
		// The name of the host says nothing, and no other authority vouches for the machine.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if err := verifyServe(state.PeerCertificates, f); err != nil {
				return fmt.Errorf("%w: %w", ErrOtherMachine, err)
			}
			return nil
		},
	}
}

// verifyServe returns an error unless the first certificate is of a serve, and made by the machine
// with a fingerprint, whose certificate is the second.
func verifyServe(chain []*x509.Certificate, f Fingerprint) error {
	if len(chain) != 2 || sha256.Sum256(chain[1].Raw) != f {
		return errors.New("its certificate is another one's")
	}
	roots := x509.NewCertPool()
	roots.AddCert(chain[1])
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: serveName})
	return err
}

func pool(machine []byte) (*x509.CertPool, error) {
	cert, err := x509.ParseCertificate(machine)
	if err != nil {
		return nil, fmt.Errorf("trust: machine certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool, nil
}

// NodeKey is a node's own key.
type NodeKey struct{ key *ecdsa.PrivateKey }

// NewNodeKey makes one.
func NewNodeKey() (NodeKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return NodeKey{}, fmt.Errorf("trust: make node key: %w", err)
	}
	return NodeKey{key}, nil
}

// Public is the public half (PKIX), to be certified.
func (k NodeKey) Public() ([]byte, error) {
	return x509.MarshalPKIXPublicKey(k.key.Public())
}

// BetweenNodes returns what a node accepts other nodes with and connects to them with: both sides
// show their certificates.
func BetweenNodes(machine []byte, k NodeKey, certificate []byte) (accept, connect *tls.Config, err error) {
	pool, err := pool(machine)
	if err != nil {
		return nil, nil, err
	}
	own := []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: k.key}}
	accept = &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: curves, Certificates: own, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	connect = &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: curves, Certificates: own, RootCAs: pool, ServerName: nodeName}
	return accept, connect, nil
}

// PeerNode reads the node's number from the certificate that the other side of a verified
// connection has shown.
func PeerNode(state tls.ConnectionState) (id.Node, error) {
	if len(state.PeerCertificates) == 0 {
		return 0, errors.New("trust: the other side shows no certificate")
	}
	text, ok := strings.CutPrefix(state.PeerCertificates[0].Subject.CommonName, "node ")
	node, err := strconv.ParseUint(text, 10, 32)
	if !ok || err != nil {
		return 0, fmt.Errorf("trust: certificate of %q is not a node's", state.PeerCertificates[0].Subject.CommonName)
	}
	return id.Node(node), nil
}

// NodeToken is the join token of a node of the machine with a secret. The term is how many nodes
// have had its number, this one included.
func NodeToken(secret string, node id.Node, term uint32) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "join token of node %d, term %d", node, term)
	return hex.EncodeToString(mac.Sum(nil))
}

// NewToken makes the secret of a machine, or any other that is compared by SameToken.
func NewToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// SameToken compares two tokens in constant time.
func SameToken(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

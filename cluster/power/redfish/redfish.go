// Package redfish switches nodes by the Redfish service of their management controllers (DMTF
// DSP0266), over HTTPS with a user and a password.
//
// A controller is not trusted further than to switch its own node: its answers are bounded, and it
// can send neither a request nor the password to another host. Most controllers have a certificate
// that no authority has signed, so one can be named by its fingerprint.
package redfish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"margay/cluster/power"
	"margay/internal/printable"
)

// Bounds on the answers of a controller: bytes of one, bytes that an error shows, and systems.
const (
	mostAnswer  = 1 << 20
	mostShown   = 200
	mostSystems = 64
)

// Config names a controller.
type Config struct {
	Address        *url.URL // https, with a host and no path
	User, Password string
	// Fingerprint is the SHA-256 of the certificate that the controller must show; nil: an
	// authority that this host trusts must have signed it.
	Fingerprint []byte
	System      string // the Id of the system; empty: the controller has one
}

// Controller is the management controller of a node. It implements power.Driver.
type Controller struct {
	config Config
	client *http.Client
	system string // the path of the system; empty until it is known
}

// New returns a controller that nothing has been sent to yet.
func New(c Config) *Controller {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.Fingerprint != nil {
		conf.InsecureSkipVerify = true // VerifyConnection does
		conf.VerifyConnection = func(s tls.ConnectionState) error {
			if got := sha256.Sum256(s.PeerCertificates[0].Raw); !bytes.Equal(got[:], c.Fingerprint) {
				return fmt.Errorf("its certificate has the fingerprint %x, not %x: either it has a new one, or something else answers for it", got, c.Fingerprint)
			}
			return nil
		}
	}
	return &Controller{config: c, client: &http.Client{
		// No proxy of the environment gets the password.
		Transport:     &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// link is a reference to another resource.
type link struct {
	Path string `json:"@odata.id"`
}

// system is what a ComputerSystem says of its power.
type system struct {
	ID         string `json:"Id"`
	PowerState string
	Actions    struct {
		Reset struct {
			Target string   `json:"target"`
			Types  []string `json:"ResetType@Redfish.AllowableValues"`
		} `json:"#ComputerSystem.Reset"`
	}
}

// On implements power.Driver.
func (c *Controller) On(ctx context.Context) error { return c.reset(ctx, "On", "ForceOn") }

// Off implements power.Driver.
func (c *Controller) Off(ctx context.Context) error { return c.reset(ctx, "ForceOff") }

// Reset implements power.Driver.
func (c *Controller) Reset(ctx context.Context) error {
	return c.reset(ctx, "ForceRestart", "PowerCycle")
}

// Status implements power.Driver.
func (c *Controller) Status(ctx context.Context) (power.State, error) {
	s, err := c.look(ctx)
	if err != nil {
		return power.Unknown, err
	}
	switch s.PowerState {
	case "On":
		return power.On, nil
	case "Off":
		return power.Off, nil
	case "PoweringOn", "PoweringOff":
		return power.Unknown, nil
	}
	return power.Unknown, c.failed(fmt.Errorf("the power state is %q", printable.Short(s.PowerState, mostShown)))
}

// reset asks for the first type of reset that the system has. A system that lists none gets the
// first one.
func (c *Controller) reset(ctx context.Context, types ...string) error {
	s, err := c.look(ctx)
	if err != nil {
		return err
	}
	allowed := s.Actions.Reset.Types
	i := slices.IndexFunc(types, func(t string) bool { return len(allowed) == 0 || slices.Contains(allowed, t) })
	if i < 0 || s.Actions.Reset.Target == "" {
		return c.failed(fmt.Errorf("the system has no reset %s: %w", strings.Join(types, " or "), power.ErrUnsupported))
	}
	body, err := json.Marshal(map[string]string{"ResetType": types[i]})
	if err != nil {
		return err
	}
	return c.request(ctx, http.MethodPost, s.Actions.Reset.Target, body, nil)
}

// look reads the system.
func (c *Controller) look(ctx context.Context) (s system, err error) {
	if c.system == "" {
		if c.system, err = c.find(ctx); err != nil {
			return s, err
		}
	}
	err = c.request(ctx, http.MethodGet, c.system, nil, &s)
	return s, err
}

// find returns the path of the system.
func (c *Controller) find(ctx context.Context) (string, error) {
	var root struct{ Systems link }
	if err := c.request(ctx, http.MethodGet, "/redfish/v1/", nil, &root); err != nil {
		return "", err
	}
	var systems struct{ Members []link }
	if err := c.request(ctx, http.MethodGet, root.Systems.Path, nil, &systems); err != nil {
		return "", err
	}
	switch n := len(systems.Members); {
	case n == 1 && c.config.System == "":
		return systems.Members[0].Path, nil
	case n == 0 || n > mostSystems:
		return "", c.failed(fmt.Errorf("it lists %d systems", n))
	}
	var ids []string
	for _, m := range systems.Members {
		var s system
		if err := c.request(ctx, http.MethodGet, m.Path, nil, &s); err != nil {
			return "", err
		}
		if s.ID == c.config.System && s.ID != "" {
			return m.Path, nil
		}
		ids = append(ids, printable.Short(s.ID, mostShown))
	}
	return "", c.failed(fmt.Errorf("it has the systems %s: name one of them as system", strings.Join(ids, ", ")))
}

// request sends a request, and decodes the answer unless it is nil.
func (c *Controller) request(ctx context.Context, method, path string, body []byte, answer any) error {
	// A path that began with another host, or with two slashes, would take the password there.
	target := *c.config.Address
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "?#\\") {
		return c.failed(fmt.Errorf("it names %q, which is not a path of its own", printable.Short(path, mostShown)))
	}
	target.Path = path
	r, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
	if err != nil {
		return c.failed(err)
	}
	r.SetBasicAuth(c.config.User, c.config.Password)
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	got, err := c.client.Do(r)
	if err != nil {
		return c.failed(explain(ctx, err))
	}
	defer got.Body.Close()
	text, err := io.ReadAll(io.LimitReader(got.Body, mostAnswer+1))
	switch {
	case err != nil:
		return c.failed(explain(ctx, err))
	case len(text) > mostAnswer:
		return c.failed(fmt.Errorf("%s %s: the answer has more than %d bytes", method, printable.Short(path, mostShown), mostAnswer))
	case got.StatusCode == http.StatusUnauthorized:
		return c.failed(fmt.Errorf("it refuses user %s with this password", c.config.User))
	case got.StatusCode < 200 || got.StatusCode > 299:
		return c.failed(fmt.Errorf("%s %s: status %d%s", method, printable.Short(path, mostShown), got.StatusCode, reason(text)))
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return c.failed(fmt.Errorf("%s %s: the answer is not what Redfish says: %v", method, printable.Short(path, mostShown), err))
	}
	return nil
}

func (c *Controller) failed(err error) error {
	return fmt.Errorf("redfish at %s: %w", c.config.Address.Host, err)
}

// reason is the message of an error as Redfish has it, as the end of an error.
func reason(text []byte) string {
	var e struct {
		Error struct {
			Message string                     `json:"message"`
			More    []struct{ Message string } `json:"@Message.ExtendedInfo"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &e) != nil {
		return ""
	}
	message := e.Error.Message
	if len(e.Error.More) > 0 && e.Error.More[0].Message != "" {
		message = e.Error.More[0].Message // the other one is often only "see ExtendedInfo"
	}
	if message == "" {
		return ""
	}
	return ": " + printable.Short(message, mostShown)
}

// explain takes the address, which is named already, out of an error of the HTTP client, and says
// how to trust a certificate.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var refused *tls.CertificateVerificationError
	if errors.As(err, &refused) && len(refused.UnverifiedCertificates) > 0 {
		return fmt.Errorf("%w; if the controller's own pages show %s as the SHA-256 of its certificate, write that as fingerprint",
			refused.Err, Fingerprint(refused.UnverifiedCertificates[0]))
	}
	return err
}

// Fingerprint returns the fingerprint of a certificate.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

package redfish

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"margay/cluster/power"
	"margay/cluster/power/powertest"
)

// service plays a Redfish service with one system, and answers other requests as a test wants.
type service struct {
	hardware powertest.Hardware
	types    []string                                      // of reset, that the system lists
	instead  func(http.ResponseWriter, *http.Request) bool // true: it has answered
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.instead != nil && s.instead(w, r) {
		return
	}
	user, password, _ := r.BasicAuth()
	if user != "operator" || password != "secret" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /redfish/v1/":
		fmt.Fprint(w, `{"Systems": {"@odata.id": "/redfish/v1/Systems"}, "Name": "a root"}`)
	case "GET /redfish/v1/Systems":
		fmt.Fprint(w, `{"Members": [{"@odata.id": "/redfish/v1/Systems/one"}]}`)
	case "GET /redfish/v1/Systems/one":
		state := "Off"
		if on, _ := s.hardware.State(); on {
			state = "On"
		}
		types, _ := json.Marshal(s.types)
		fmt.Fprintf(w, `{"Id": "one", "PowerState": %q, "Actions": {"#ComputerSystem.Reset":
			{"target": "/redfish/v1/Systems/one/Actions/ComputerSystem.Reset", "ResetType@Redfish.AllowableValues": %s}}}`, state, types)
	case "POST /redfish/v1/Systems/one/Actions/ComputerSystem.Reset":
		var ask struct{ ResetType string }
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.hardware.Do(map[string]power.Action{
			"On": power.SwitchOn, "ForceOff": power.SwitchOff, "ForceRestart": power.Reset, "PowerCycle": power.Reset,
		}[ask.ResetType])
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error": {"message": "see below", "@Message.ExtendedInfo": [{"Message": "there is no\x1b such thing"}]}}`)
	}
}

// play starts a service and returns how it is reached.
func play(t *testing.T, s *service) Config {
	t.Helper()
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(server.Certificate().Raw)
	return Config{Address: u, User: "operator", Password: "secret", Fingerprint: sum[:]}
}

func TestContract(t *testing.T) {
	for _, types := range [][]string{nil, {"On", "ForceOff", "PowerCycle", "GracefulShutdown"}, {"ForceRestart", "On", "ForceOff", "PowerCycle"}} {
		s := &service{types: types}
		powertest.Contract(t, New(play(t, s)), &s.hardware)
	}
}

// Errors name the controller and the cause.
func TestRefusals(t *testing.T) {
	sends := func(text string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprint(w, text)
			return true
		}
	}
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request goes to another host") }))
	t.Cleanup(other.Close)
	for name, c := range map[string]struct {
		change  func(*Config)
		instead func(http.ResponseWriter, *http.Request) bool
		want    string
	}{
		"wrong password":   {func(c *Config) { c.Password = "other" }, nil, "it refuses user operator with this password"},
		"own certificate":  {func(c *Config) { c.Fingerprint = nil }, nil, "as the SHA-256 of its certificate, write that as fingerprint"},
		"other":            {func(c *Config) { c.Fingerprint = make([]byte, 32) }, nil, "either it has a new one, or something else answers for it"},
		"no such system":   {func(c *Config) { c.System = "two" }, nil, "it has the systems one: name one of them as system"},
		"not JSON":         {nil, sends("<html>"), "GET /redfish/v1/: the answer is not what Redfish says"},
		"other JSON":       {nil, sends(`{"Systems": 7}`), "the answer is not what Redfish says"},
		"empty JSON":       {nil, sends(`{}`), `it names "", which is not a path of its own`},
		"no end":           {nil, sends(strings.Repeat(" ", mostAnswer+1)), "the answer has more than 1048576 bytes"},
		"another host":     {nil, sends(`{"Systems": {"@odata.id": "` + other.URL + `/"}}`), "which is not a path of its own"},
		"another host too": {nil, sends(`{"Systems": {"@odata.id": "//` + other.Listener.Addr().String() + `/x"}}`), "which is not a path of its own"},
		"strange state": {nil, func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == "/redfish/v1/Systems/one" && sends("{\"PowerState\": \"\x1b\\u001b[31m\"}")(w, r)
		}, "is not what Redfish says"},
		"no state": {nil, func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == "/redfish/v1/Systems/one" && sends(`{"PowerState": "\u001b[31mOn"}`)(w, r)
		}, `the power state is "?[31mOn"`},
		"no systems": {nil, func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == "/redfish/v1/Systems" && sends(`{}`)(w, r)
		}, "it lists 0 systems"},
		"redirection": {nil, func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, other.URL, http.StatusFound)
			return true
		}, "GET /redfish/v1/: status 302"},
		"error": {nil, func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/redfish/v1/" {
				w.WriteHeader(http.StatusServiceUnavailable)
				return sends(`{"error": {"message": "see below", "@Message.ExtendedInfo": [{"Message": "it\u001b starts"}]}}`)(w, r)
			}
			return false
		}, "status 503: it? starts"},
	} {
		conf := play(t, &service{instead: c.instead})
		if c.change != nil {
			c.change(&conf)
		}
		ctx, cancel := context.WithTimeout(t.Context(), powertest.Patience)
		state, err := New(conf).Status(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "redfish at 127.0.0.1:") {
			t.Errorf("%s: %v, %v", name, state, err)
		}
	}
	_, err := power.Carry(t.Context(), New(play(t, &service{types: []string{"GracefulShutdown"}})), power.SwitchOn)
	if !errors.Is(err, power.ErrUnsupported) || !strings.Contains(err.Error(), "the system has no reset On or ForceOn") {
		t.Errorf("a system without a reset: %v", err)
	}
}

// A service that answers slowly or not at all costs no more than the time for the action.
func TestSlow(t *testing.T) {
	late := errors.New("timed out")
	// A handler that returned would send an answer, and a client that is closing its connection may
	// still read it.
	for name, instead := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"silent": func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		},
		"slow": func(w http.ResponseWriter, r *http.Request) bool {
			for r.Context().Err() == nil {
				fmt.Fprint(w, " ")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
			panic(http.ErrAbortHandler)
		},
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, late)
		if err := New(play(t, &service{instead: instead})).Off(ctx); !errors.Is(err, late) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// No answer makes the client fail, or leaves its own host.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"error": {"message": "no", "@Message.ExtendedInfo": [{"Message": "x"}]}}`))
	f.Add([]byte(`{"Systems": {"@odata.id": "//x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got := reason(text); strings.ContainsAny(got, "\x1b\n\x00") {
			t.Errorf("%q is shown as %q", text, got)
		}
		address, _ := url.Parse("https://bmc")
		c := New(Config{Address: address})
		c.client.Transport = answers(text, t)
		_, _ = c.Status(t.Context())
		_ = c.Off(t.Context())
	})
}

// answers gives one answer to all requests, and fails if one goes to another host.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answers(text []byte, t *testing.T) transport {
	return func(r *http.Request) (*http.Response, error) {
		if r.URL.Host != "bmc" || r.URL.Scheme != "https" {
			t.Errorf("a request goes to %s", r.URL)
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(text))), Request: r}, nil
	}
}

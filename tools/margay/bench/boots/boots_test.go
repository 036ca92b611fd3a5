package boots

import (
	"context"
	"errors"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// files is an HTTP service, played by a handler, and a station that uses it.
func files(t *testing.T, handler http.HandlerFunc) *station {
	t.Helper()
	played := httptest.NewServer(handler)
	t.Cleanup(played.Close)
	at := netip.MustParseAddrPort(strings.TrimPrefix(played.URL, "http://"))
	w := wire{server: at.Addr(), http: at.Port(), sums: map[string]uint32{
		kernelPath: crc32.Checksum([]byte("kernel"), table), imagePath: crc32.Checksum([]byte("image"), table),
	}}
	s := w.station(1, Card, new(counts))
	s.loaded = make(map[string]bool)
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// serveContent serves the files of a node.
func serveContent(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(strings.TrimPrefix(r.URL.Path, "/")))
}

// A station boots by the script that it gets, in the order of its lines.
func TestScript(t *testing.T) {
	const load = "kernel --name x http://1.1.1.1/kernel a=b || goto failed\ninitrd http://1.1.1.1/image || goto failed\n"
	for name, c := range map[string]struct{ text, want string }{
		"boots":             {"#!ipxe\necho hello\n" + load + "boot || goto failed\n:failed\nreboot\n", "booted"},
		"nothing is loaded": {"#!ipxe\nboot || goto failed\n:failed\nreboot\n", errFetch.Error()},
		"a file is missing": {"#!ipxe\nkernel http://1.1.1.1/none || goto failed\nboot\n:failed\nreboot\n", errFetch.Error()},
		"a file differs":    {"#!ipxe\nkernel http://1.1.1.1/kernel\ninitrd http://1.1.1.1/changed/image\nboot\n", "/changed/image: 404"},
		"waits":             {"#!ipxe\n:again\nsleep 0\nchain --replace http://1.1.1.1/next || goto again\n", "booted"},
		"is over":           {"#!ipxe\necho hello\n", "come to its end"},
		"no label":          {"#!ipxe\nboot || goto moon\n", `no label "moon"`},
		"no command":        {"#!ipxe\nshell\n", `no command "shell"`},
		"no script":         {"#!/bin/sh\n", "not a script for iPXE"},
		"too long":          {"#!ipxe\n" + strings.Repeat("echo\n", mostLines+1), "more than 1000 lines"},
	} {
		s := files(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case kernelPath, imagePath:
				serveContent(w, r)
			case "/next":
				http.ServeContent(w, r, "", time.Time{}, strings.NewReader("#!ipxe\n"+load+"boot\n"))
			default:
				http.NotFound(w, r)
			}
		})
		s.tries = 1
		if err := s.run(t.Context(), c.text); err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, errBooted) != (c.want == "booted") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A transfer that is cut off is continued where it was. A file that differs is refused.
func TestFetch(t *testing.T) {
	asked := 0
	s := files(t, func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Content-Length", "6")
			w.Write([]byte("ker"))
			return // the connection ends
		}
		if got := r.Header.Get("Range"); asked == 2 && got != "bytes=3-" {
			t.Errorf("it continues with %q", got)
		}
		serveContent(w, r)
	})
	if err := s.load(t.Context(), "http://1.1.1.1/kernel"); err != nil || s.counts.HTTP.Load() != 1 {
		t.Errorf("%v, continued %d times", err, s.counts.HTTP.Load())
	}
	s.sums[imagePath]++
	if err := s.load(t.Context(), "http://1.1.1.1/image"); err == nil || s.loaded[imagePath] {
		t.Errorf("a file that differs: %v", err)
	}
}

// Whatever the services send for a script, it is read without harm.
func FuzzParseScript(f *testing.F) {
	f.Add("#!ipxe\n:again\nsleep 5\ndhcp || goto again\nchain --replace http://1.1.1.1/boot.ipxe || goto again\n")
	f.Add("#!ipxe\n:\n || goto \n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseScript(text)
		if err != nil {
			return
		}
		for label, at := range s.labels {
			if at < 0 || at > len(s.lines) {
				t.Errorf("label %q is line %d of %d", label, at, len(s.lines))
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		station := wire{server: netip.MustParseAddr("127.0.0.1")}.station(1, Card, new(counts))
		_ = station.run(ctx, text) // it ends
	})
}

func TestPeak(t *testing.T) {
	if got := peakOf("VmPeak:\t 100 kB\nVmHWM:\t    1234 kB\n"); got != 1234 {
		t.Errorf("%d", got)
	}
	if text, err := os.ReadFile("/proc/self/status"); err != nil || peakOf(string(text)) == 0 {
		t.Errorf("this process has no peak: %v", err)
	}
}

func TestTimes(t *testing.T) {
	r := new(Result)
	var times []time.Duration
	for n := range 200 {
		times = append(times, time.Duration(200-n)*time.Second)
	}
	r.finish(times)
	if r.Median != 100 || r.P99 != 199 || r.Last != 200 {
		t.Errorf("%+v", r)
	}
}

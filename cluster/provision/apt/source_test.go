package apt

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseSources(t *testing.T) {
	const text = `# a comment before everything
Types: deb deb-src
URIs: http://mirror.example/debian
  http://second.example/debian
# a comment inside
Suites: trixie trixie-updates
Components: main contrib
Signed-By: /keys/archive.gpg
Check-Valid-Until: no

Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main
Enabled: no


Types: deb-src
URIs: http://src.example/debian
Suites: trixie
Components: main

Types: deb
URIs: http://flat.example/repo
Suites: ./

types: deb
uris: http://key.example/debian
suites: trixie
components: main
architectures: arm64 amd64
signed-by:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcd
 -----END PGP PUBLIC KEY BLOCK-----
`
	want := []source{
		{
			URIs:            []string{"http://mirror.example/debian", "http://second.example/debian"},
			Suites:          []string{"trixie", "trixie-updates"},
			Components:      []string{"main", "contrib"},
			SignedBy:        "/keys/archive.gpg",
			CheckValidUntil: "no",
		},
		{
			URIs:          []string{"http://key.example/debian"},
			Suites:        []string{"trixie"},
			Components:    []string{"main"},
			Architectures: []string{"arm64", "amd64"},
			SignedBy:      "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcd\n -----END PGP PUBLIC KEY BLOCK-----",
		},
	}
	equalSources(t, parseSources(text), want)
}

func TestParseList(t *testing.T) {
	const text = `
deb http://mirror.example/debian bookworm main contrib # trailing comment
deb-src http://mirror.example/debian bookworm main
#deb http://off.example/debian bookworm main
deb	[ arch=amd64,arm64 signed-by=/keys/a.gpg,/keys/b.gpg check-valid-until=no lang=en ] http://opt.example/debian bookworm main
deb [arch=amd64 http://unclosed.example bookworm main
deb http://flat.example/repo ./
debian is not a type
`
	want := []source{
		{URIs: []string{"http://mirror.example/debian"}, Suites: []string{"bookworm"}, Components: []string{"main", "contrib"}},
		{
			URIs: []string{"http://opt.example/debian"}, Suites: []string{"bookworm"}, Components: []string{"main"},
			Architectures: []string{"amd64", "arm64"}, SignedBy: "/keys/a.gpg /keys/b.gpg", CheckValidUntil: "no",
		},
	}
	equalSources(t, parseList(text), want)
}

// A stanza written must be read as the same source, keys in text included.
func TestStanzaRoundTrip(t *testing.T) {
	s := source{
		URIs: []string{"http://a.example/debian", "mirror+file:/etc/mirrors.list"}, Suites: []string{"s", "s-updates"},
		Components: []string{"main"}, Architectures: []string{"arm64"}, SignedBy: "\n -----BEGIN\n .\n x\n -----END",
		CheckValidUntil: "no",
	}
	equalSources(t, parseSources(s.stanza("arm64")+s.stanza("arm64")), []source{s, s})
}

func equalSources(t *testing.T, got, want []source) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d sources, want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		g := got[i]
		for _, list := range []*[]string{&g.URIs, &g.Suites, &g.Components, &g.Architectures} {
			if len(*list) == 0 {
				*list = nil
			}
		}
		if !reflect.DeepEqual(g, want[i]) {
			t.Errorf("source %d:\n got %+v\nwant %+v", i, g, want[i])
		}
	}
}

func FuzzParseSources(f *testing.F) {
	f.Add("Types: deb\nURIs: http://a.example/d\nSuites: x\nComponents: main\nSigned-By:\n -----BEGIN\n .\n")
	f.Add(": x\n y\n\n#\nTypes deb\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range parseSources(text) {
			if !s.usable() {
				t.Fatalf("unusable source %+v", s)
			}
			again := parseSources(s.stanza("amd64"))
			if len(again) != 1 || again[0].SignedBy != s.SignedBy || strings.Join(again[0].URIs, " ") != strings.Join(s.URIs, " ") {
				t.Fatalf("%+v became %+v", s, again)
			}
		}
	})
}

func FuzzParseList(f *testing.F) {
	f.Add("deb [arch=amd64 signed-by=/k] http://a.example/d x main\ndeb [\ndeb ] a b c\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range parseList(text) {
			if !s.usable() {
				t.Fatalf("unusable source %+v", s)
			}
		}
	})
}

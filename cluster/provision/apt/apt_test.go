package apt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/provision/apt/apttest"
)

// The private configuration must reach the archive as the host does, and take neither its hooks nor
// its tolerance of unsigned indexes.
func TestPrivateConfiguration(t *testing.T) {
	dir := t.TempDir()
	a := &Archive{Config: Config{Dir: dir, Arch: "arm64", Run: new(apttest.Archive).Run}}
	sources := []source{{URIs: []string{"http://m.example/debian"}, Suites: []string{"s"}, Components: []string{"main"}, SignedBy: "/k.gpg"}}
	if err := a.configure(context.Background(), sources); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "apt.conf"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(data)
	for _, want := range []string{
		`Dir::State "` + dir, `Dir::State::status "` + dir, `Dir::Cache "` + dir, `Dir::Etc "` + dir,
		`APT::Architecture "arm64"`, `Acquire::http::Proxy "http://proxy.example"`, `Acquire::AllowInsecureRepositories "false"`,
	} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s in\n%s", want, config)
		}
	}
	for _, bad := range []string{"Invoke", `AllowInsecureRepositories "true"`, `"host"`} {
		if strings.Contains(config, bad) {
			t.Errorf("%s in\n%s", bad, config)
		}
	}
	list, err := os.ReadFile(filepath.Join(dir, "etc/sources.list.d/archive.sources"))
	if err != nil || !strings.Contains(string(list), "Signed-By: /k.gpg\n") || !strings.Contains(string(list), "Architectures: arm64\n") {
		t.Errorf("sources %q, %v", list, err)
	}
}

func TestPrivateDirectoryName(t *testing.T) {
	a := &Archive{Config: Config{Dir: t.TempDir() + `/a"b`, Arch: "amd64", Run: new(apttest.Archive).Run}}
	err := a.configure(context.Background(), nil)
	if err == nil || !strings.Contains(err.Error(), "character") {
		t.Errorf("error %v", err)
	}
}

// A suite that is named is read alone, at the address and with the keyring of the machine's own.
func TestOpenAndFetch(t *testing.T) {
	fake := &apttest.Archive{
		Suites: map[string]map[string]string{"bookworm": {"old": ""}, "later": {"new": "old", "data": ""}},
		Trees:  map[string]map[string]string{"new": {"usr/bin/new": "text"}, "data": {"usr/share/data": ""}},
	}
	ctx, root := context.Background(), apttest.DebianHost(t)
	host, err := ReadHost(root)
	if err != nil {
		t.Fatal(err)
	}
	for suite, want := range map[string]string{"": "bookworm", "later": "later"} {
		c := Config{Dir: filepath.Join(t.TempDir(), "apt"), Arch: "amd64", Run: fake.Run}
		a, err := host.Open(ctx, suite, c)
		if err != nil || a.Suite() != want {
			t.Fatalf("suite %q: %+v, %v", suite, a, err)
		}
		found, err := a.Show(ctx, "old", "new", "data")
		if err != nil || len(found) != len(fake.Suites[want]) {
			t.Errorf("suite %q has %+v, %v", suite, found, err)
		}
		list, err := os.ReadFile(filepath.Join(c.Dir, "etc/sources.list.d/archive.sources"))
		if err != nil || !strings.Contains(string(list), "http://m.example/debian\nSuites: "+want+"\n") || !strings.Contains(string(list), "/keys/k.gpg") {
			t.Errorf("sources %q, %v", list, err)
		}
		if suite == "" {
			continue
		}
		tree, err := a.Fetch(ctx, "things", found)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(tree, "usr/bin/new")); string(text) != "text" {
			t.Errorf("unpacked %q, %v", text, err)
		}
		if _, err := a.Fetch(ctx, "things", append(found, found[0])); err == nil || !strings.Contains(err.Error(), "2 of 3 packages arrived") {
			t.Errorf("a package that did not arrive: %v", err)
		}
	}
	// A component that the machine itself does not use is read alone.
	fake.Suites["bookworm/other"] = map[string]string{"data": ""}
	a, err := host.Open(ctx, "", Config{Dir: filepath.Join(t.TempDir(), "apt"), Arch: "amd64", Component: "other", Run: fake.Run})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := a.Show(ctx, "old", "data"); err != nil || len(found) != 1 || found[0].Name != "data" {
		t.Errorf("the component has %+v, %v", found, err)
	}
	if _, err := host.Open(ctx, "none", Config{Dir: t.TempDir(), Arch: "amd64", Run: fake.Run}); !errors.Is(err, ErrNoSuite) {
		t.Errorf("a suite that is not there: %v", err)
	}
}

func TestRun(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	out, err := Run(ctx, dir, []string{"GREETING=hello"}, "sh", "-c", "echo $GREETING; pwd")
	if err != nil || out != "hello\n"+dir+"\n" {
		t.Errorf("%q, %v", out, err)
	}
	_, err = Run(ctx, dir, nil, "sh", "-c", "echo first >&2; echo reason >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "sh: exit status 3: first; reason") {
		t.Errorf("error %v", err)
	}
	if _, err = Run(ctx, dir, nil, "no-such-program"); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("error %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err = Run(ended, dir, nil, "sleep", "60"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

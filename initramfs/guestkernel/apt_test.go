package guestkernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The private configuration must reach the archive as the host does, and take neither its hooks nor its tolerance of
// unsigned indexes.
func TestPrivateConfiguration(t *testing.T) {
	dir := t.TempDir()
	sources := []source{{URIs: []string{"http://m.example/debian"}, Suites: []string{"s"}, Components: []string{"main"}, SignedBy: "/k.gpg"}}
	if _, err := newAPT(context.Background(), dir, "arm64", sources, debianArchive().run); err != nil {
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
	_, err := newAPT(context.Background(), t.TempDir()+`/a"b`, "amd64", nil, debianArchive().run)
	if err == nil || !strings.Contains(err.Error(), "character") {
		t.Errorf("error %v", err)
	}
}

func TestExecRunner(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	out, err := execRunner(ctx, dir, []string{"GREETING=hello"}, "sh", "-c", "echo $GREETING; pwd")
	if err != nil || out != "hello\n"+dir+"\n" {
		t.Errorf("%q, %v", out, err)
	}
	_, err = execRunner(ctx, dir, nil, "sh", "-c", "echo first >&2; echo reason >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "sh: exit status 3: first; reason") {
		t.Errorf("error %v", err)
	}
	if _, err = execRunner(ctx, dir, nil, "no-such-program"); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("error %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err = execRunner(ended, dir, nil, "sleep", "60"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

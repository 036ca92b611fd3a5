package guestkernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// runner runs a program in dir with extra environment and returns its standard output. Its error holds what the program
// said on standard error. It is a parameter so that tests need neither apt nor a network.
type runner func(ctx context.Context, dir string, env []string, name string, args ...string) (string, error)

// waitDelay is how long the children of a program that was ended may keep its output open.
const waitDelay = 2 * time.Second

func execRunner(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = waitDelay
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", name, ctx.Err())
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%s is not installed: %w", name, err)
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", name, err, lastLines(stderr.String(), 8))
	}
	return stdout.String(), nil
}

// lastLines returns the last n lines of text as one line.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// apt is an apt with a configuration of its own below dir.
type apt struct {
	dir  string
	arch string // Debian's name
	run  runner
}

// newAPT prepares a private apt below dir that knows the given sources and nothing else.
func newAPT(ctx context.Context, dir, arch string, sources []source, run runner) (apt, error) {
	a := apt{dir: dir, arch: arch, run: run}
	if strings.ContainsAny(dir, "\"\n\\") {
		return a, errors.New("the name of the directory has a character that apt's configuration cannot hold")
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "etc/sources.list.d", "etc/apt.conf.d",
		"etc/preferences.d", "debs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return a, err
		}
	}
	acquire, err := hostAcquire(ctx, dir, run)
	if err != nil {
		return a, err
	}
	var list strings.Builder
	for _, s := range sources {
		list.WriteString(s.stanza(arch))
	}
	return a, errors.Join(
		os.WriteFile(filepath.Join(dir, "status"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "etc/sources.list.d/archive.sources"), []byte(list.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(a.config()+acquire), 0o644),
	)
}

// config returns the private configuration. Hooks of the host's configuration do not run because its files are not
// read; its keyrings and passwords for archives stay in use. With the user root, apt would hand its work to a user that
// cannot enter the cache; it downloads as root instead. An index without a good signature is an error.
func (a apt) config() string {
	return fmt.Sprintf(`Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Etc "%[1]s/etc";
Dir::Etc::trusted "/etc/apt/trusted.gpg";
Dir::Etc::trustedparts "/etc/apt/trusted.gpg.d";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
APT::Architecture "%[2]s";
APT::Architectures { "%[2]s"; };
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
`, a.dir, a.arch)
}

// hostSettings begin the names of those settings of the host's apt that say how to reach the archive and what date to
// believe. They are in force for the private apt too.
var hostSettings = []string{
	"acquire::http::", "acquire::https::", "acquire::retries", "acquire::forceipv", "acquire::check-",
}

// hostAcquire returns those settings as lines of a configuration file.
func hostAcquire(ctx context.Context, dir string, run runner) (string, error) {
	dump, err := run(ctx, dir, nil, "apt-config", "dump", "--no-empty")
	if err != nil {
		return "", err
	}
	var kept strings.Builder
	for line := range strings.Lines(dump) {
		for _, prefix := range hostSettings {
			if strings.HasPrefix(strings.ToLower(line), prefix) {
				kept.WriteString(line)
			}
		}
	}
	return kept.String(), nil
}

func (a apt) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	return a.run(ctx, dir, []string{"APT_CONFIG=" + filepath.Join(a.dir, "apt.conf"), "LC_ALL=C"}, name, args...)
}

// update reads the package index. It returns ErrNoSuite if the archive can be reached and does not have the suite.
func (a apt) update(ctx context.Context) error {
	_, err := a.command(ctx, a.dir, "apt-get", "-q", "update")
	if err != nil && strings.Contains(err.Error(), "does not have a Release file") {
		return fmt.Errorf("%w: %w", ErrNoSuite, err)
	}
	return err
}

// pkg is what the index says of the newest version of one package.
type pkg struct {
	name, version string
	size          int64    // of the package file, in bytes
	depends       []string // names it cannot do without; choices are left out
}

// show returns those of the named packages that exist.
func (a apt) show(ctx context.Context, names ...string) ([]pkg, error) {
	args := append([]string{"show", "--no-all-versions", "--"}, names...)
	text, err := a.command(ctx, a.dir, "apt-cache", args...)
	if err != nil && strings.Contains(err.Error(), "No packages found") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parsePackages(text), nil
}

// download puts the packages' files into the directory debs.
func (a apt) download(ctx context.Context, names ...string) (debs string, err error) {
	debs = filepath.Join(a.dir, "debs")
	_, err = a.command(ctx, debs, "apt-get", append([]string{"-q", "download", "--"}, names...)...)
	return debs, err
}

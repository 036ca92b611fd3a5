package apt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"margay/internal/progress"
)

// Runner runs a program in dir with extra environment and returns its standard output. Its error
// contains the program's standard error. It is a parameter so that tests need neither apt nor a
// network.
type Runner func(ctx context.Context, dir string, env []string, name string, args ...string) (string, error)

// waitDelay bounds the time that children of a killed program may keep its output open.
const waitDelay = 2 * time.Second

// Run is the Runner that runs programs.
func Run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
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

// Config describes access to an archive.
type Config struct {
	Dir       string // an empty or absent directory for all of it; its path is absolute
	Arch      string // Debian's name of the architecture whose packages are wanted
	Component string // of the archive, for instance non-free-firmware; empty: main
	Run       Runner
	Progress  progress.Func // may be nil
}

// Archive is a private apt with one suite, or with the suites that the machine uses.
type Archive struct {
	Config
	suite string
}

// Suite returns the name of the suite, for people.
func (a *Archive) Suite() string { return a.suite }

// Open reads the package index of a suite of the distribution's archive. An empty name selects the
// machine's own suites with their updates. The error wraps ErrNoSuite if the archive is reachable
// but lacks the suite.
func (h Host) Open(ctx context.Context, suite string, c Config) (*Archive, error) {
	sources, err := h.archive(c.Arch, cmp.Or(c.Component, mainComponent))
	if err != nil {
		return nil, err
	}
	a := &Archive{Config: c, suite: h.Codename}
	if suite != "" {
		a.suite = suite
		sources = sources[:1]
		sources[0].Suites = []string{suite}
	}
	c.Progress.Report(progress.Step{Text: "reading the package index of " + a.suite})
	if err := a.configure(ctx, sources); err != nil {
		return nil, err
	}
	return a, a.update(ctx)
}

// configure prepares the private directory for the given sources only.
func (a *Archive) configure(ctx context.Context, sources []source) error {
	if strings.ContainsAny(a.Dir, "\"\n\\") {
		return errors.New("the name of the directory contains a character that apt's configuration cannot represent")
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "etc/sources.list.d", "etc/apt.conf.d",
		"etc/preferences.d", "debs"} {
		if err := os.MkdirAll(filepath.Join(a.Dir, d), 0o755); err != nil {
			return err
		}
	}
	acquire, err := a.hostAcquire(ctx)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, s := range sources {
		list.WriteString(s.stanza(a.Arch))
	}
	return errors.Join(
		os.WriteFile(filepath.Join(a.Dir, "status"), nil, 0o644),
		os.WriteFile(filepath.Join(a.Dir, "etc/sources.list.d/archive.sources"), []byte(list.String()), 0o644),
		os.WriteFile(filepath.Join(a.Dir, "apt.conf"), []byte(a.config()+acquire), 0o644),
	)
}

// config returns the private configuration. The host's configuration files are not read, so its
// hooks do not run; its keyrings and archive passwords stay in use. As root, apt would download as
// a user that cannot enter the cache; it downloads as root instead. An index without a valid
// signature is an error.
func (a *Archive) config() string {
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
`, a.Dir, a.Arch)
}

// hostSettings are prefixes of the host's apt settings about access to the archive and the validity
// of dates. They apply to the private apt as well.
var hostSettings = []string{
	"acquire::http::", "acquire::https::", "acquire::retries", "acquire::forceipv", "acquire::check-",
}

// hostAcquire returns these settings as lines of a configuration file.
func (a *Archive) hostAcquire(ctx context.Context) (string, error) {
	dump, err := a.Run(ctx, a.Dir, nil, "apt-config", "dump", "--no-empty")
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

func (a *Archive) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	return a.Run(ctx, dir, []string{"APT_CONFIG=" + filepath.Join(a.Dir, "apt.conf"), "LC_ALL=C"}, name, args...)
}

func (a *Archive) update(ctx context.Context) error {
	_, err := a.command(ctx, a.Dir, "apt-get", "-q", "update")
	if err != nil && strings.Contains(err.Error(), "does not have a Release file") {
		return fmt.Errorf("%w: %w", ErrNoSuite, err)
	}
	return err
}

// Show returns the named packages that exist.
func (a *Archive) Show(ctx context.Context, names ...string) ([]Package, error) {
	args := append([]string{"show", "--no-all-versions", "--"}, names...)
	text, err := a.command(ctx, a.Dir, "apt-cache", args...)
	if err != nil && strings.Contains(err.Error(), "No packages found") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parsePackages(text), nil
}

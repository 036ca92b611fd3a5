package apt

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Host describes the machine that fetches: its distribution and its apt sources.
type Host struct {
	Distribution string // Debian or Ubuntu, which it is or is like
	Version      string // VERSION_ID of os-release
	Codename     string // name of the release, which is the name of its suite
	sources      []source
}

// The distributions that are known, by their ID in os-release.
const (
	Debian = "debian"
	Ubuntu = "ubuntu"
)

// aliases are the suites of a known distribution that may stand for the release's own.
var aliases = map[string][]string{
	Debian: {"stable", "oldstable", "testing", "unstable", "sid"},
	Ubuntu: nil,
}

// maxFile bounds the bytes read of a file of the host.
const maxFile = 1 << 20

// ReadHost reads the distribution and the apt sources of the machine whose root directory is given.
func ReadHost(root string) (Host, error) {
	text, err := readBounded(filepath.Join(root, "etc/os-release"))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = readBounded(filepath.Join(root, "usr/lib/os-release"))
	}
	if err != nil {
		return Host{}, fmt.Errorf("read os-release: %w", err)
	}
	h, err := parseRelease(text)
	if err != nil {
		return Host{}, err
	}
	apt := filepath.Join(root, "etc/apt")
	h.sources, err = readSources(apt)
	if err != nil {
		return Host{}, fmt.Errorf("read the apt sources in %s: %w", apt, err)
	}
	return h, nil
}

// parseRelease recognises the distribution from the text of os-release(5).
func parseRelease(text string) (Host, error) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = strings.Trim(value, `"'`)
		}
	}
	for _, id := range append([]string{values["ID"]}, strings.Fields(values["ID_LIKE"])...) {
		if _, ok := aliases[id]; !ok {
			continue
		}
		h := Host{Distribution: id, Version: values["VERSION_ID"], Codename: values["VERSION_CODENAME"]}
		if name := values[strings.ToUpper(id)+"_CODENAME"]; name != "" {
			h.Codename = name
		}
		return h, nil
	}
	return Host{}, fmt.Errorf("distribution %q: %w", values["ID"], ErrUnknown)
}

// readSources reads the list of sources from apt's configuration directory.
func readSources(dir string) ([]source, error) {
	var all []source
	names := []string{"sources.list"}
	parts, err := os.ReadDir(filepath.Join(dir, "sources.list.d"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, p := range parts {
		names = append(names, filepath.Join("sources.list.d", p.Name()))
	}
	for _, name := range names {
		parse := map[string]func(string) []source{".list": parseList, ".sources": parseSources}[filepath.Ext(name)]
		if parse == nil {
			continue
		}
		text, err := readBounded(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		case err != nil:
			return nil, err
		default:
			all = append(all, parse(text)...)
		}
	}
	return all, nil
}

// mainComponent is in every archive of a distribution.
const mainComponent = "main"

// archive returns the entries of the distribution's own archive for a Debian architecture: the main
// one, then its updates and security fixes. They have the given component alone, also if the
// machine itself does not use it: the archive has all of them at one address, signed by one key.
//
// Third parties also publish packages under the release's suite name. The main entry is the one
// whose keyring or last part of the address has the distribution's name.
func (h Host) archive(arch, component string) ([]source, error) {
	var entries []source
	best, bestScore := -1, -1
	for _, s := range h.sources {
		if !slices.Contains(s.Components, mainComponent) || len(s.Architectures) > 0 && !slices.Contains(s.Architectures, arch) {
			continue
		}
		s.Components = []string{component}
		entries = append(entries, s)
		if score := h.score(s); score > bestScore && h.hasRelease(s) {
			best, bestScore = len(entries)-1, score
		}
	}
	if best < 0 {
		return nil, fmt.Errorf("%s %s: %w", h.Distribution, h.Codename, ErrNoArchive)
	}
	own := []source{entries[best]}
	for i, s := range entries {
		if i == best {
			continue
		}
		if slices.Equal(s.URIs, own[0].URIs) || slices.Contains(s.Suites, h.Codename+"-security") {
			own = append(own, s)
		}
	}
	return own, nil
}

// hasRelease reports whether s offers the release that the machine runs.
func (h Host) hasRelease(s source) bool {
	return slices.ContainsFunc(s.Suites, func(suite string) bool {
		return suite == h.Codename || slices.Contains(aliases[h.Distribution], suite)
	})
}

func (h Host) score(s source) int {
	score := 0
	if strings.Contains(s.SignedBy, h.Distribution+"-archive-keyring") {
		score += 2
	}
	for _, uri := range s.URIs {
		// The address may be a list of mirrors, named DISTRIBUTION.list.
		if name := strings.TrimSuffix(path.Base(uri), ".list"); strings.HasPrefix(name, h.Distribution) {
			return score + 1
		}
	}
	return score
}

func readBounded(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxFile)
	}
	return string(data), err
}

package guestkernel

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

// host is what matters here of the machine that fetches: its distribution and its apt sources.
type host struct {
	distribution distribution
	version      string // VERSION_ID of os-release
	codename     string // name of the release, which is the name of its suite
	sources      []source
}

// distribution is a row of the table of distributions: how to recognise its archive and where its kernels are.
type distribution struct {
	id      string   // ID of os-release
	aliases []string // suites that may stand for the release's own
	offers  []offer  // in order of preference
}

// offer is one place of an archive where kernels may be.
type offer struct {
	suite string   // empty: the machine's own suites
	metas []string // packages that depend on the current kernel; ARCH and VERSION are replaced
	least string   // older releases will not do; empty: any
}

var distributions = []distribution{
	{
		id:      "debian",
		aliases: []string{"stable", "oldstable", "testing", "unstable", "sid"},
		offers: []offer{
			{suite: "trixie-backports", metas: []string{"linux-image-cloud-ARCH"}, least: "7.2"},
			{metas: []string{"linux-image-cloud-ARCH", "linux-image-ARCH"}},
		},
	},
	{
		id: "ubuntu",
		offers: []offer{{metas: []string{
			"linux-image-virtual-hwe-VERSION", "linux-image-virtual",
			"linux-image-generic-hwe-VERSION", "linux-image-generic",
		}}},
	},
}

// maxFile bounds the bytes read of a file of the host.
const maxFile = 1 << 20

// readHost reads the distribution and the apt sources of the machine whose root directory is given.
func readHost(root string) (host, error) {
	text, err := readBounded(filepath.Join(root, "etc/os-release"))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = readBounded(filepath.Join(root, "usr/lib/os-release"))
	}
	if err != nil {
		return host{}, &Error{Op: "read", Object: "os-release", Err: err}
	}
	h, err := parseRelease(text)
	if err != nil {
		return host{}, err
	}
	apt := filepath.Join(root, "etc/apt")
	h.sources, err = readSources(apt)
	if err != nil {
		return host{}, &Error{Op: "read the apt sources in", Object: apt, Err: err}
	}
	return h, nil
}

// parseRelease recognises the distribution from the text of os-release(5).
func parseRelease(text string) (host, error) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = strings.Trim(value, `"'`)
		}
	}
	for _, id := range append([]string{values["ID"]}, strings.Fields(values["ID_LIKE"])...) {
		i := slices.IndexFunc(distributions, func(d distribution) bool { return d.id == id })
		if i < 0 {
			continue
		}
		h := host{distribution: distributions[i], version: values["VERSION_ID"], codename: values["VERSION_CODENAME"]}
		if name := values[strings.ToUpper(id)+"_CODENAME"]; name != "" {
			h.codename = name
		}
		return h, nil
	}
	return host{}, &Error{Op: "choose a package for", Object: fmt.Sprintf("distribution %q", values["ID"]),
		Err: fmt.Errorf("%w: only Debian, Ubuntu and what is like them are known", ErrNoPackage)}
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

// archive returns the entries of the distribution's own archive for a Debian architecture, the main one first and those
// of its updates and security fixes after it. They are reduced to the component main, where the kernels are.
//
// Others publish packages under the release's suite name as well, so the main entry is the one that looks most like the
// distribution's: its keyring or the last part of its address bears the distribution's name.
func (h host) archive(arch string) ([]source, error) {
	var entries []source
	best, bestScore := -1, -1
	for _, s := range h.sources {
		if !slices.Contains(s.Components, "main") || len(s.Architectures) > 0 && !slices.Contains(s.Architectures, arch) {
			continue
		}
		s.Components = []string{"main"}
		entries = append(entries, s)
		if score := h.score(s); score > bestScore && h.hasRelease(s) {
			best, bestScore = len(entries)-1, score
		}
	}
	if best < 0 {
		return nil, &Error{Op: "find the archive of", Object: h.distribution.id + " " + h.codename, Err: ErrNoArchive}
	}
	own := []source{entries[best]}
	for i, s := range entries {
		if i == best {
			continue
		}
		if slices.Equal(s.URIs, own[0].URIs) || slices.Contains(s.Suites, h.codename+"-security") {
			own = append(own, s)
		}
	}
	return own, nil
}

// hasRelease reports whether s offers the release that the machine runs.
func (h host) hasRelease(s source) bool {
	return slices.ContainsFunc(s.Suites, func(suite string) bool {
		return suite == h.codename || slices.Contains(h.distribution.aliases, suite)
	})
}

func (h host) score(s source) int {
	score := 0
	if strings.Contains(s.SignedBy, h.distribution.id+"-archive-keyring") {
		score += 2
	}
	for _, uri := range s.URIs {
		// The address may be a list of mirrors, named DISTRIBUTION.list.
		if name := strings.TrimSuffix(path.Base(uri), ".list"); strings.HasPrefix(name, h.distribution.id) {
			return score + 1
		}
	}
	return score
}

// metapackages returns the names of o's packages for a Debian architecture.
func (h host) metapackages(o offer, arch string) []string {
	var names []string
	for _, meta := range o.metas {
		names = append(names, strings.NewReplacer("ARCH", arch, "VERSION", h.version).Replace(meta))
	}
	return names
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

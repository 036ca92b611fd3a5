package guestkernel

import (
	"slices"
	"strconv"
	"strings"
)

// parsePackages reads stanzas of a package index.
func parsePackages(text string) []pkg {
	var found []pkg
	for _, s := range parseStanzas(text) {
		if s["package"] == "" || s["version"] == "" {
			continue
		}
		size, err := strconv.ParseInt(s["size"], 10, 64)
		if err != nil || size < 0 {
			size = 0
		}
		found = append(found, pkg{name: s["package"], version: s["version"], size: size,
			depends: parseDepends(s["depends"])})
	}
	return found
}

// parseDepends returns the names in a dependency field (deb-control(5)), without versions and architectures. Where
// there is a choice of packages none is returned.
func parseDepends(field string) []string {
	var names []string
	for dependency := range strings.SplitSeq(field, ",") {
		if strings.Contains(dependency, "|") {
			continue
		}
		dependency = strings.TrimSpace(dependency)
		if end := strings.IndexAny(dependency, " \t\n(:["); end >= 0 {
			dependency = dependency[:end]
		}
		if dependency != "" {
			names = append(names, dependency)
		}
	}
	return names
}

const imagePrefix = "linux-image-"

// release returns the kernel release whose image p depends on, if p is a metapackage of a kernel.
func (p pkg) release() (string, bool) {
	i := slices.IndexFunc(p.depends, func(name string) bool {
		rest, ok := strings.CutPrefix(name, imagePrefix)
		return ok && rest != "" && isDigit(rest[0])
	})
	if i < 0 {
		return "", false
	}
	return p.depends[i][len(imagePrefix):], true
}

// parts returns those dependencies of p that belong to the same kernel release.
func (p pkg) parts(release string) []string {
	var names []string
	for _, d := range p.depends {
		if strings.HasPrefix(d, "linux-") && strings.HasSuffix(d, "-"+release) {
			names = append(names, d)
		}
	}
	return names
}

package apt

import (
	"strconv"
	"strings"
)

// Package is the index's description of the newest version of a package.
type Package struct {
	Name, Version string
	Size          int64    // of the package file, in bytes
	Depends       []string // names it cannot do without; choices are left out
}

// parsePackages reads stanzas of a package index.
func parsePackages(text string) []Package {
	var found []Package
	for _, s := range parseStanzas(text) {
		if s["package"] == "" || s["version"] == "" {
			continue
		}
		size, err := strconv.ParseInt(s["size"], 10, 64)
		if err != nil || size < 0 {
			size = 0
		}
		found = append(found, Package{Name: s["package"], Version: s["version"], Size: size,
			Depends: parseDepends(s["depends"])})
	}
	return found
}

// parseDepends returns the names in a dependency field (deb-control(5)), without versions and
// architectures. Where there is a choice of packages none is returned.
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

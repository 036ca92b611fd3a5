package linux

import (
	"slices"
	"strings"

	"margay/cluster/provision/apt"
)

const imagePrefix = "linux-image-"

// release returns the kernel release whose image p depends on, if p is a metapackage of a kernel.
func release(p apt.Package) (string, bool) {
	i := slices.IndexFunc(p.Depends, func(name string) bool {
		rest, ok := strings.CutPrefix(name, imagePrefix)
		return ok && rest != "" && '0' <= rest[0] && rest[0] <= '9'
	})
	if i < 0 {
		return "", false
	}
	return p.Depends[i][len(imagePrefix):], true
}

// parts returns those dependencies of p that belong to the same kernel release.
func parts(p apt.Package, release string) []string {
	var names []string
	for _, d := range p.Depends {
		if strings.HasPrefix(d, "linux-") && strings.HasSuffix(d, "-"+release) {
			names = append(names, d)
		}
	}
	return names
}

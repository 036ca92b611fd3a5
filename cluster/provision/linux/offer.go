package linux

import (
	"strings"

	"margay/cluster/provision/apt"
)

// offer is a suite that may have kernels.
type offer struct {
	suite string   // empty: the machine's own suites
	metas []string // packages that depend on the current kernel; ARCH and VERSION are replaced
	least string   // older releases will not do; empty: any
}

// distributions lists the suites with kernels of virtual machines for each known distribution, in
// order of preference.
var distributions = map[string][]offer{
	apt.Debian: {
		{suite: "trixie-backports", metas: []string{"linux-image-cloud-ARCH"}, least: "7.2"},
		{metas: []string{"linux-image-cloud-ARCH", "linux-image-ARCH"}},
	},
	apt.Ubuntu: {{metas: []string{
		"linux-image-virtual-hwe-VERSION", "linux-image-virtual",
		"linux-image-generic-hwe-VERSION", "linux-image-generic",
	}}},
}

// generic lists the suites with kernels of machines of any kind, likewise.
var generic = map[string][]offer{
	apt.Debian: {
		{suite: "trixie-backports", metas: []string{"linux-image-ARCH"}, least: "7.2"},
		{metas: []string{"linux-image-ARCH"}},
	},
	apt.Ubuntu: {{metas: []string{"linux-image-generic-hwe-VERSION", "linux-image-generic"}}},
}

// metapackages returns the names of o's packages for a host and a Debian architecture.
func (o offer) metapackages(h apt.Host, arch string) []string {
	var names []string
	for _, meta := range o.metas {
		names = append(names, strings.NewReplacer("ARCH", arch, "VERSION", h.Version).Replace(meta))
	}
	return names
}

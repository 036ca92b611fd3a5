package guestkernel

import "slices"

// Kernel is a kernel that a node can boot. It is a plain value: copy it freely.
type Kernel struct {
	Version string   `json:"version"` // release as uname -r prints it
	Arch    string   `json:"arch"`    // processor architecture, Go's name
	Image   string   `json:"image"`   // path of the bootable image
	Modules string   `json:"modules"` // path of the directory lib/modules/VERSION, empty if there is none
	Config  string   `json:"config"`  // path of the build configuration, empty if it is not known
	Source  string   `json:"source"`  // where it came from, for people
	Lacks   []string `json:"lacks"`   // names of the Features it does not have; Describe explains one
	options map[string]string
}

// Option returns the value of a build option, named without CONFIG_: "y", "m", a number or a
// string. The value is empty if the option is not set or the configuration is unknown.
func (k Kernel) Option(name string) string { return k.options[name] }

// ConfigKnown reports whether the build configuration was found, and Option is meaningful.
func (k Kernel) ConfigKnown() bool { return k.options != nil }

// TakesUnsigned reports whether the kernel is known to load modules without a signature, unless its
// command line or a Secure Boot forbids it.
func (k Kernel) TakesUnsigned() bool {
	return k.ConfigKnown() && !slices.ContainsFunc(signedOnly, func(option string) bool { return k.Option(option) == "y" })
}

// signedOnly are options of kernels that refuse such modules.
var signedOnly = []string{"MODULE_SIG_FORCE", "LOCK_DOWN_KERNEL_FORCE_INTEGRITY", "LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY", "IMA_APPRAISE_REQUIRE_MODULE_SIGS"}

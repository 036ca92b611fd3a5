package job

import (
	"fmt"

	"github.com/spf13/pflag"

	"margay/cluster/launch"
)

// labels are the values of --label.
var labels = map[string]launch.Label{
	"": launch.NoLabel, labelRank: launch.ByRank, "host": launch.ByHost, "both": launch.ByBoth,
}

// labelRank is the value of --label without one.
const labelRank = "rank"

// labelFlag adds the flag that labels lines of output.
func labelFlag(fs *pflag.FlagSet, label *string) {
	fs.StringVarP(label, "label", "l", "", "begin each line of output with its `rank`, or with =host its node, or with =both")
	fs.Lookup("label").NoOptDefVal = labelRank
}

// checkLabel refuses values that --label does not have.
func checkLabel(label string) error {
	if _, ok := labels[label]; !ok {
		return fmt.Errorf("--label=%s: it is rank, host or both", label)
	}
	return nil
}

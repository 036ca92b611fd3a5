package machine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/login"
	"margay/cluster/machine"
	"margay/cluster/site"
	"margay/kernel/abi/node"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// State is a line of margay machine list for programs.
type State struct {
	Machine   string    `json:"machine"`
	State     string    `json:"state"` // up, making, dead: its holder or its making was killed; or remote
	Substrate string    `json:"substrate"`
	Nodes     int       `json:"nodes"`
	Cores     int       `json:"cores"` // for applications, on each node
	Owner     string    `json:"owner"`
	Since     time.Time `json:"since"` // when it was made
	HolderPID int       `json:"holder_pid"`
	Folder    string    `json:"folder"`
	Address   string    `json:"address,omitempty"` // of a remote one; nothing but this, the name, the time and the folder is known of it
}

func (a commands) machineListCommand() *cobra.Command {
	return a.ColorFlag(a.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List all machines, including dead and remote ones",
		Long: `List the machines in the folder that MARGAY_DIR names, by default all of this user. A machine is dead when its holder, or the
margay machine up that made it, was killed; margay machine down removes the rest. A remote one is on another host (margay login); it is
not asked whether it is up.`,
		Example: "  margay machine list\n  margay machine list --json | jq -r '.[].machine'",
		Args:    command.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			list, err := List()
			if err != nil {
				return err
			}
			others, err := logins()
			if err != nil {
				return err
			}
			list = append(list, others...)
			if len(list) == 0 {
				if err := a.reportNone(); err != nil {
					return err
				}
			}
			if a.JSON {
				return show.Value(a.Stdout, list)
			}
			t := a.Table("MACHINE", "STATE", "SUBSTRATE", "NODES", "CORES/NODE", "OWNER", "SINCE", "HOLDER")
			for _, m := range list {
				if m.State == remote {
					t.Row(m.Machine, show.State{Text: m.State}, "-", "-", "-", "-", m.Since.Local().Format(time.DateTime), m.Address)
					continue
				}
				t.Row(m.Machine, show.State{Text: m.State, Color: stateColors[m.State]}, m.Substrate, m.Nodes, m.coresEach(), m.Owner, m.Since.Format(time.DateTime), m.HolderPID)
			}
			if err := t.Flush(); err != nil {
				return err
			}
			for _, m := range list {
				if m.State == "dead" {
					note := fmt.Sprintf("%s is dead: margay machine down -m %[1]s removes the rest", m.Machine)
					fmt.Fprintln(a.Stdout, show.Fold(note, show.Width(a.Stdout), 4))
				}
			}
			return nil
		},
	}))
}

// remote is the state of a machine of another host.
const remote = "remote"

// logins returns the machines of other hosts.
func logins() (list []State, err error) {
	names, err := login.Names()
	for _, name := range names {
		dir, err := login.Dir(name)
		if err != nil {
			return nil, err
		}
		m := State{Machine: name, State: remote, Folder: dir}
		l, err := login.Read(dir)
		if m.Address, m.Since = l.Address, l.Since; err != nil {
			m.Address = err.Error()
		}
		list = append(list, m)
	}
	return list, err
}

// stateColors are the colors of the states of machines.
var stateColors = map[string]show.Color{"up": show.Good, "making": show.Passing, "dead": show.Bad}

// reportNone reports which folder has no machine, and other folders in it. With --json an empty
// folder needs no report: the list is empty.
func (a commands) reportNone() error {
	base, err := site.Base()
	if err != nil {
		return err
	}
	others := machine.Others(base)
	switch {
	case len(others) > 0:
		fmt.Fprintf(a.Stderr, "margay: %s has no machine of yours; these folders in it are none: %s\n", base, strings.Join(others, ", "))
	case !a.JSON:
		fmt.Fprintf(a.Stderr, "margay: there is no machine in %s\n", base)
	}
	return nil
}

// coresEach says how many application cores a node has.
func (m State) coresEach() string {
	if m.Cores == 0 && m.Substrate == node.Hosts {
		return "its host's"
	}
	if m.Cores == 0 && m.Substrate == node.Metal {
		return "its own"
	}
	return strconv.Itoa(m.Cores)
}

// List looks at the folders of all machines. A folder that disappears is left out.
func List() ([]State, error) {
	list := []State{}
	dirs, err := machine.List()
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		info, err := os.Stat(string(d))
		if err != nil {
			continue
		}
		m := State{Machine: d.Name(), State: "up", Owner: owner(info), Since: info.ModTime().Truncate(time.Second), Folder: string(d)}
		spec, err := d.ReadSpec()
		if err != nil && !errors.Is(err, machine.ErrNoMachine) {
			continue
		}
		if err == nil {
			m.Substrate, m.Nodes, m.Cores = spec.Substrate, spec.Nodes, spec.Cores
			if nodes, err := d.ReadRoster(spec); err == nil {
				m.Nodes = len(nodes.Nodes)
			}
			if made, err := d.Made(); err == nil {
				m.Since = made.Truncate(time.Second)
			}
		}
		var alive bool
		switch m.HolderPID, alive = d.Holder(); {
		case alive:
		case d.BeingMade():
			m.State = "making"
		default:
			m.State = "dead"
		}
		list = append(list, m)
	}
	return list, nil
}

// owner names the user whose a file is.
func owner(info os.FileInfo) string {
	uid := strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid))
	u, err := user.LookupId(uid)
	if err != nil {
		return uid
	}
	return cmp.Or(u.Username, uid)
}

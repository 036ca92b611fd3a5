package machine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/cluster/update"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// updateFlags are the flags of margay node update.
type updateFlags struct {
	image   machine.ImageOptions
	rolling uint32
	timeout time.Duration
	noWait  bool
	force   bool
}

func (a commands) updateCommand() *cobra.Command {
	var u updateFlags
	c := a.QuietFlag(a.JSONFlag(&cobra.Command{
		Use:   "update NODE...",
		Short: "Give nodes another image, one after the other, by kexec",
		Long: `Give nodes another image while the jobs of the machine go on. A node is taken out of service, gets the image after its last job,
starts the Linux of the image in the place of its own (kexec), and is in service again when it has joined with the image. From then
on it boots this image, whatever starts it. Then the next node has its turn; with --rolling, several have it at a time.

Without --image the image is built of the node program beside margay and the guest kernel in the cache, as margay machine up does it.

A node that does not join within --timeout is reset, boots its old image, and stays out of service with the reason. So does a node
whose new image ends, or that refuses it. The update stops then: nodes that wait for their turn keep their image. Margay node resume
takes the failed node into service again. It also stops an update, if it takes a node into service that is being drained for it.

A node that runs the image already keeps it, without an end of its jobs; --force gives it again. A metal node that no power driver
can reset must be reset by hand when its new image hangs. One that boots from a disk boots the image on its disk next time.

The command can be interrupted; the update goes on, and margay machine logs says what happens. The nodes must be virtual or metal.
The owner of the machine or root gives the order, because the image goes to the folder of the machine.`,
		Example: `  margay node update 0..3
  margay node update 0..3 --image node.img --rolling 2`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Given(c, "image", "kernel"); err != nil {
				return err
			}
			nodes, err := nodeset.Parse(strings.Join(args, ","))
			if err != nil {
				return err
			}
			if u.rolling == 0 || u.timeout < 0 {
				return fmt.Errorf("%s: --rolling is a number of nodes from 1, and --timeout a time", command.Called(c))
			}
			return a.update(c.Context(), nodes, u)
		},
	}))
	f := c.Flags()
	f.StringVar(&u.image.File, "image", "", "a node image that margay image build has written")
	f.StringVar(&u.image.Kernel, "kernel", "", "the kernel to which the modules of the image belong: generic, or one of your own, a vmlinuz or a folder with boot and lib/modules (default: as the machine was made)")
	f.StringVar(&u.image.Program, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
	f.Uint32Var(&u.rolling, "rolling", 1, "how many nodes are out of service for the update at a time")
	f.DurationVar(&u.timeout, "timeout", 0, "how long a node may take to load the image, and then to join with it (default: as long as for a boot)")
	f.BoolVar(&u.force, "force", false, "nodes that run the image already start it once more")
	f.BoolVar(&u.noWait, "no-wait", false, "do not wait for the nodes")
	return c
}

// updatePoll is the interval at which the state of an update is asked for.
const updatePoll = 200 * time.Millisecond

// update begins an update, and reports its progress until it ends.
func (a commands) update(ctx context.Context, nodes []uint32, u updateFlags) error {
	if _, err := a.Dir(); err != nil { // it is another user's, or on another host
		return err
	}
	folder, err := a.Running()
	if err != nil {
		return err
	}
	d := machine.Dir(folder)
	if err := d.CanUpdate(); err != nil {
		return err
	}
	if u.image.Program, u.image.JobInit, err = command.NodePrograms(u.image.Program); err != nil {
		return err
	}
	u.image.Progress = a.Progress()
	image, first, err := d.AddImage(ctx, u.image)
	if err != nil {
		return err
	}
	state, err := command.AskWithin[*control.Update](ctx, a.App, &control.UpdateNodes{
		Nodes: nodes, Image: image, Rolling: u.rolling, TimeoutMs: u.timeout.Milliseconds(), User: client.UserName(), Force: u.force, First: first,
	}, rebootWait)
	if err != nil {
		return err
	}
	a.Report("image %s for %s", image, nodeset.Condense(nodes))
	if !u.noWait {
		ctx, stop := command.Interruptible(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		defer stop()
		if state, err = a.follow(ctx, state); err != nil {
			return fmt.Errorf("%w; the update goes on (margay nodes)", err)
		}
	}
	if a.JSON {
		if err := show.Value(a.Stdout, updateResult(state)); err != nil {
			return err
		}
	}
	if state.Stopped != "" {
		return fmt.Errorf("the update has stopped: %s", state.Stopped)
	}
	return nil
}

// follow reports the progress of an update until it ends, and returns its last state.
func (a commands) follow(ctx context.Context, state *control.Update) (*control.Update, error) {
	shown := make(map[uint32]string)
	for {
		for _, n := range state.Nodes {
			if text := stageText(n); text != shown[n.Node] {
				shown[n.Node] = text
				a.Report("node%d: %s", n.Node, text)
			}
		}
		if !update.Running(state) {
			return state, nil
		}
		select {
		case <-time.After(updatePoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		next, err := command.Ask[*control.Update](ctx, a.App, &control.ReadUpdate{})
		if err != nil {
			return nil, err
		}
		state = next
	}
}

// stageTexts describe the stages for people.
var stageTexts = map[control.UpdateStage]string{
	update.Draining: "out of service, until its jobs have ended", update.Loading: "it gets the image", update.Starting: "it starts the image",
	update.Keeping: "it has joined with the image", update.Done: "in service again", update.Resetting: "it is reset", update.Failed: "out of service",
	update.Left: "it keeps its image",
}

// stageText describes the stage of a node; empty: there is nothing to say.
func stageText(n *control.NodeUpdate) string {
	text := stageTexts[n.Stage]
	switch {
	case (n.Stage == update.Keeping || n.Stage == update.Done) && n.Reason != "": // why it was not given the image
		text = n.Reason
	case n.Stage == update.Done && n.Out:
		text = "out of service, as before"
	case n.Reason != "":
		text += ": " + n.Reason
	}
	return text
}

// updated is the result of an update, for programs.
type updated struct {
	Image   string        `json:"image"`
	Stopped string        `json:"stopped,omitempty"` // why some nodes keep their image
	Nodes   []updatedNode `json:"nodes"`
}

type updatedNode struct {
	Node   string `json:"node"`
	Stage  string `json:"stage"`
	Reason string `json:"reason,omitempty"`
}

func updateResult(state *control.Update) updated {
	r := updated{Image: state.Image, Stopped: state.Stopped}
	for _, n := range state.Nodes {
		r.Nodes = append(r.Nodes, updatedNode{Node: fmt.Sprintf("node%d", n.Node), Stage: n.Stage.Word(), Reason: n.Reason})
	}
	return r
}

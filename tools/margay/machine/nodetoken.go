package machine

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"margay/internal/nodeset"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) nodeTokenCommand() *cobra.Command {
	var revoke, list bool
	life := lifeFlag(day)
	c := a.JSONFlag(a.QuietFlag(&cobra.Command{
		Use:   "token NODE",
		Short: "Make the token by which a machine becomes a node without approval",
		Long: `Make the token of a node of the substrate metal that does not exist yet, and print it. A machine that boots a disk image with the
token (margay image build --token) becomes this node without margay node approve. The first machine that presents it uses it up, and
the machine keeps a hash of it, and the number of the node, until then. A new token of a node replaces its last one. The token cannot be printed again, and is forgotten
when the machine goes down. --list shows which tokens there are, and when the last one of each node was used.

The owner of the machine makes tokens, on the service host.`,
		Example: `  margay node token 3
  margay node token 3 --expires 7d | margay image build --format disk --token - -o node3.disk
  margay node token 3 --revoke
  margay node token --list`,
		Args: func(c *cobra.Command, args []string) error {
			if list {
				return command.NoArguments(c, args)
			}
			return command.Arguments(1, 1)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if list {
				return a.listNodeTokens(c)
			}
			if err := command.Without(c, "is for --list", "json"); err != nil {
				return err
			}
			nodes, err := nodeset.Parse(args[0])
			if err != nil {
				return err
			}
			if len(nodes) != 1 {
				return fmt.Errorf("node token: %s are %d nodes, and a token is of one", nodeset.Condense(nodes), len(nodes))
			}
			d, err := a.Running()
			if err != nil {
				return err
			}
			if revoke {
				if err := command.Without(c, "is for a new token", "expires"); err != nil {
					return err
				}
				return d.RevokeNodeToken(nodes[0])
			}
			now := time.Now()
			expires := now.Add(time.Duration(life))
			token, err := d.MakeNodeToken(nodes[0], now, expires)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(a.Stdout, token); err != nil {
				return err
			}
			a.Report("the token of %s is valid once, until %s; margay image build --format disk --token puts it on a disk", nodeset.Condense(nodes), expires.Format(time.DateTime))
			return nil
		},
	}))
	c.Flags().Var(&life, "expires", "how long it is valid, in days or hours: 30d or 8h")
	c.Flags().BoolVar(&revoke, "revoke", false, "remove the token of the node, which then admits no machine")
	c.Flags().BoolVar(&list, "list", false, "list the tokens of the machine, without their text")
	return c
}

// listNodeTokens lists the tokens of nodes.
func (a commands) listNodeTokens(c *cobra.Command) error {
	if err := command.Without(c, "has no meaning with --list", "expires", "revoke"); err != nil {
		return err
	}
	d, err := a.Running()
	if err != nil {
		return err
	}
	tokens := d.NodeTokens()
	if a.JSON {
		return show.Value(a.Stdout, tokens)
	}
	t := a.Table("NODE", "TERM", "CREATED", "EXPIRES", "USED", "BY")
	for _, token := range tokens {
		used := ""
		if !token.Used.IsZero() {
			used = token.Used.Local().Format(time.DateTime)
		}
		t.Row(fmt.Sprintf("node%d", token.Node), token.Term, token.Created.Local().Format(time.DateTime), token.Expires.Local().Format(time.DateTime), used, token.Card)
	}
	return t.Flush()
}

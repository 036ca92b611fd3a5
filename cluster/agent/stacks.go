package agent

import (
	"context"
	"strings"

	"margay/cluster/control"
	"margay/kernel/abi/id"
	"margay/kernel/stack"
)

// readStacks answers where ranks of a job are.
func (a *Agent) readStacks(ctx context.Context, m *control.ReadStacks) (*control.Stacks, error) {
	var ranks []id.Rank
	for _, r := range m.Ranks {
		ranks = append(ranks, id.Rank(r))
	}
	report, err := a.node.ReadStacks(ctx, id.Job(m.Job), ranks)
	if err != nil {
		return nil, err
	}
	out := &control.Stacks{Files: codeFiles(report.Modules), Left: uint32(report.Left)}
	for _, g := range report.Groups {
		group := &control.StackGroup{Stack: codeStack(g.Stack, g.Cut)}
		for _, r := range g.Ranks {
			group.Ranks, group.Threads, group.Main = append(group.Ranks, r.Rank), append(group.Threads, uint32(r.Threads)), append(group.Main, r.Main)
		}
		out.Groups = append(out.Groups, group)
	}
	for _, u := range report.Unread {
		out.Unread = append(out.Unread, &control.UnreadRank{Rank: u.Rank, Why: strings.ToValidUTF8(u.Why, "?")})
	}
	return out, nil
}

// faultMessage is a fault of a rank as a message.
func faultMessage(f *stack.Fault) *control.RankFault {
	if f == nil {
		return nil
	}
	return &control.RankFault{Code: int32(f.Code), Address: f.Addr, Files: codeFiles(f.Modules), Stack: codeStack(f.Stack, false)}
}

func codeFiles(modules []stack.Module) (files []*control.CodeFile) {
	for _, m := range modules {
		files = append(files, &control.CodeFile{Path: strings.ToValidUTF8(m.Path, "?"), Build: m.Build})
	}
	return files
}

func codeStack(s stack.Stack, cut bool) *control.CodeStack {
	out := &control.CodeStack{Cut: cut}
	for _, f := range s {
		out.Files, out.Addresses = append(out.Files, int32(f.Module)), append(out.Addresses, f.Addr)
	}
	return out
}

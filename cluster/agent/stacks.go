package agent

import (
	"context"
	"strings"

	"margay/cluster/control"
	"margay/kernel/abi/id"
	"margay/kernel/stack"
	"margay/kernel/task"
)

// maxLayouts bounds the programs of a job whose goroutines are read.
const maxLayouts = 16

// readStacks answers where ranks of a job are.
func (a *Agent) readStacks(ctx context.Context, m *control.ReadStacks) (*control.Stacks, error) {
	if len(m.Layouts) > maxLayouts {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "%d layouts of programs, at most %d can be", len(m.Layouts), maxLayouts)
	}
	var wanted task.StacksBody
	for _, r := range m.Ranks {
		wanted.Ranks = append(wanted.Ranks, id.Rank(r))
	}
	for _, l := range m.Layouts {
		wanted.Layouts = append(wanted.Layouts, stack.GoLayout{
			Path: l.File.GetPath(), Build: l.File.GetBuild(), All: l.All, SP: l.Sp, PC: l.Pc, BP: l.Bp, Status: l.Status,
		})
	}
	report, err := a.node.ReadStacks(ctx, id.Job(m.Job), wanted)
	if err != nil {
		return nil, err
	}
	out := &control.Stacks{Files: codeFiles(report.Modules), Left: uint32(report.Left)}
	for _, g := range report.Groups {
		group := &control.StackGroup{Stack: codeStack(g.Stack, g.Cut), Goroutine: g.Goroutine}
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

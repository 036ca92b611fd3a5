package machine

import (
	"fmt"

	"margay/cluster/control"
	"margay/kernel/abi/id"
)

// stage implements updater.
func (m *metalNodes) stage(number id.Node, term uint32, name string) (*control.ImageStaged, error) {
	m.mu.Lock()
	config, err := m.config(number, term)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return m.images.stage(name, config)
}

// keep implements updater.
func (m *metalNodes) keep(number id.Node, name string) error {
	if err := m.images.keep(number, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notice(m.node(number), "")
	return nil
}

// notice says something about what a node has booted, or nothing. The caller holds m.mu.
func (m *metalNodes) notice(n *metalNode, what string) {
	if n.notice != what {
		n.notice = what
		m.running.Go(m.events.changed)
	}
}

// drop forgets the image that an update has given a node that boots from a disk, where the update
// has changed nothing. The caller holds m.mu.
func (m *metalNodes) drop(number id.Node, n *metalNode) {
	dropped, err := m.images.forget(number)
	if err != nil {
		m.events.log("node%d: %v", number, err)
	}
	if dropped != "" {
		m.notice(n, fmt.Sprintf("node%d has booted from its disk, so it does not have image %s of margay node update any more: update it again, and write the image to the disk", number, dropped))
		m.events.log("%s", n.notice)
	}
}

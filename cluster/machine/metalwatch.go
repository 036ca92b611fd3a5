package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"margay/cluster/metal"
)

// otherServer describes another DHCP server.
func otherServer(o metal.Offer) string {
	if o.Boots {
		return fmt.Sprintf("another DHCP server, %v, answers there and names something to boot", o.Server)
	}
	return fmt.Sprintf("another DHCP server, %v, answers there", o.Server)
}

// mostRivals bounds the other DHCP servers that are reported: any station can play them.
const mostRivals = 8

// rival notes an offer of another DHCP server. The server of the site is none, unless it names
// something to boot. The caller holds m.mu.
func (m *metalNodes) rival(o metal.Offer) {
	known := slices.ContainsFunc(m.others, func(other metal.Offer) bool { return other.Server == o.Server })
	if known || len(m.others) >= mostRivals || m.spec.Metal.Proxy && !o.Boots {
		return
	}
	m.others = append(m.others, o)
	m.running.Go(func() {
		m.events.log("%s: %s", m.spec.Metal.Interface, otherServer(o))
		m.events.changed()
	})
}

// watch looks for other DHCP servers.
func (m *metalNodes) watch(ctx context.Context) {
	err := m.wire.Watch(ctx, m.spec.Metal.Plan.Server.Addr(), func(o metal.Offer) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rival(o)
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
		m.events.log("%s: other DHCP servers stay unseen: %v", m.spec.Metal.Interface, err)
	}
}

// startWatch begins to look for other DHCP servers, until the returned function is called. When
// that returns, the port of DHCP clients is free.
func (m *metalNodes) startWatch() (end func()) {
	ctx, cancel := context.WithCancel(m.ctx)
	var watching sync.WaitGroup
	watching.Go(func() { m.watch(ctx) })
	return func() {
		cancel()
		watching.Wait()
	}
}

// lookPause is the time between two looks at the interface.
const lookPause = 2 * time.Second

// attend looks after the interface of the boot network, and at other DHCP servers there.
func (m *metalNodes) attend() {
	line := m.wire.Line()
	unwatch := m.startWatch()
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for {
		select {
		case <-m.ctx.Done():
			unwatch()
			return
		case <-ticker.C:
		}
		sight := m.wire.Look()
		bind, changed := line.See(sight)
		if bind {
			changed = line.Bound(sight.Index, m.wire.Bind())
		}
		if line.Trouble() == "" && (bind || changed) { // its socket, or its question, may have failed
			unwatch()
			unwatch = m.startWatch()
		}
		m.attended(line.Trouble(), bind, changed)
	}
}

// attended notes what a look at the interface has shown.
func (m *metalNodes) attended(trouble string, bound, changed bool) {
	m.mu.Lock()
	m.trouble, m.ownCard = trouble, m.wire.MAC()
	m.mu.Unlock()
	switch {
	case trouble == "" && (changed || bound):
		m.events.log("the interface %s serves machines that boot again", m.spec.Metal.Interface)
	case changed:
		m.events.log("%s", trouble)
	}
	if changed {
		m.events.changed()
	}
}

// expirePause is the time between two looks for guests that have gone.
const expirePause = 30 * time.Second

// expire forgets guests that have gone.
func (m *metalNodes) expire() {
	ticker := time.NewTicker(expirePause)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			m.mu.Lock()
			gone := m.cards.Expire(now)
			for _, mac := range gone {
				m.boot.services.Forget(mac)
			}
			m.mu.Unlock()
			if len(gone) > 0 {
				m.events.changed()
			}
		case <-m.ctx.Done():
			return
		}
	}
}

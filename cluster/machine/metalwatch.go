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

// rival is another DHCP server.
type rival struct {
	metal.Offer
	seen bool      // it has answered this host; otherwise a station has named it
	last time.Time // when that happened last
}

// Other DHCP servers are reported, so many, for so long after they were seen or named.
const (
	mostRivals = 8 // any station can play them
	rivalTime  = 3 * metal.WatchPause
)

// meets notes an offer of another DHCP server. The server of the site is none, unless it names
// something to boot. A server that was seen takes the place of one that was named. The caller holds
// m.mu.
func (m *metalNodes) meets(now time.Time, o metal.Offer, seen bool) {
	if m.spec.Metal.Proxy && !o.Boots {
		return
	}
	if i := slices.IndexFunc(m.others, func(r rival) bool { return r.Server == o.Server }); i >= 0 {
		m.others[i].seen, m.others[i].last = m.others[i].seen || seen, now
		return
	}
	if len(m.others) >= mostRivals {
		named := slices.IndexFunc(m.others, func(r rival) bool { return !r.seen })
		if !seen || named < 0 {
			return
		}
		m.others = slices.Delete(m.others, named, named+1)
	}
	m.others = append(m.others, rival{o, seen, now})
	m.running.Go(func() {
		m.events.log("%s: %s", m.spec.Metal.Interface, otherServer(o))
		m.events.changed()
	})
}

// forgetRivals forgets other DHCP servers that have been silent, and reports whether there were
// any. The caller holds m.mu.
func (m *metalNodes) forgetRivals(now time.Time) bool {
	before := len(m.others)
	m.others = slices.DeleteFunc(m.others, func(r rival) bool { return now.Sub(r.last) > rivalTime })
	return len(m.others) < before
}

// watch looks for other DHCP servers.
func (m *metalNodes) watch(ctx context.Context) {
	err := m.wire.Watch(ctx, m.spec.Metal.Plan.Server.Addr(), func(o metal.Offer) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.meets(time.Now(), o, true)
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

// expire forgets guests, and other DHCP servers, that have gone.
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
			fewer := m.forgetRivals(now)
			m.mu.Unlock()
			if fewer || len(gone) > 0 {
				m.events.changed()
			}
		case <-m.ctx.Done():
			return
		}
	}
}

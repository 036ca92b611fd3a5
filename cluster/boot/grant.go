package boot

import "time"

// grantTime is how long after its lease a node can fetch its configuration, which its script does
// first.
const grantTime = time.Minute

// Grants decides whether a configuration can be fetched: from the address of its node, within
// grantTime after a lease of the node's iPXE, and once. It is not safe for concurrent use. Its
// entries are of nodes only, so their number is bounded.
type Grants map[MAC]time.Time

// Arm notes that a host has a lease for the script.
func (g Grants) Arm(now time.Time, h Host) {
	if !h.Guest {
		g[h.MAC] = now
	}
}

// Extend begins the time of a grant again, for a host that waits for its turn. A grant whose time
// is over stays so.
func (g Grants) Extend(now time.Time, h Host) {
	if armed, ok := g[h.MAC]; ok && now.Sub(armed) <= grantTime {
		g[h.MAC] = now
	}
}

// Take uses up the grant of a host. Without one it returns the reason.
func (g Grants) Take(now time.Time, h Host) (refusal string) {
	armed, ok := g[h.MAC]
	delete(g, h.MAC)
	switch {
	case !ok:
		return "no lease came before, or another station with its address has fetched it"
	case now.Sub(armed) > grantTime:
		return "its lease is too old"
	}
	return ""
}

package kernel

import (
	"crypto/sha256"
	"encoding/binary"

	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// The user ids of jobs: a range that people, containers and allocators of ids for services do not
// use (systemd, UIDS-GIDS).
const (
	firstUID = 0x70000000
	uidCount = 0x0ffe0000
)

// userOf chooses the user id of a job. Linux counts processes, pending signals and keys by user,
// for all nodes that share it, so each job has an id of its own on each node of each machine: a
// hash, in which the machine's token makes machines of the same name differ. No two jobs of this
// node have the same id; two jobs of different nodes share one only if their hashes collide.
func userOf(c node.Config, job id.Job, taken func(uid int) bool) int {
	for try := uint32(0); ; try++ {
		h := sha256.New()
		for _, text := range []string{c.Machine, c.Token} {
			h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(text))))
			h.Write([]byte(text))
		}
		for _, number := range []uint32{uint32(c.Node), uint32(job), try} {
			h.Write(binary.BigEndian.AppendUint32(nil, number))
		}
		uid := firstUID + int(binary.BigEndian.Uint64(h.Sum(nil))%uidCount)
		if !taken(uid) {
			return uid
		}
	}
}

// chooseUser sets the user id of a job that has just been entered in the table. The caller holds
// n.mu.
func (n *Node) chooseUser(j *job) { j.uid = n.userFor(j.spec.Job) }

// userFor chooses a user id that no job here has. The caller holds n.mu.
func (n *Node) userFor(number id.Job) int {
	return userOf(n.config.Boot, number, func(uid int) bool {
		for _, other := range n.jobs {
			if other.uid == uid {
				return true
			}
		}
		return false
	})
}

// spareUser chooses the user id of a job whose number is not known yet, on a node where user ids
// are only names in the job's own user namespace: a job that comes before it may get the same id.
func (n *Node) spareUser() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.spareUsers++
	return n.userFor(^id.Job(0) - n.spareUsers)
}

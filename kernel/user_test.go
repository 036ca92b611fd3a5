package kernel

import (
	"testing"

	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// Jobs of different nodes, machines and numbers have different user ids, far from the ids of
// people.
func TestUserOf(t *testing.T) {
	free := func(int) bool { return false }
	seen := make(map[int]node.Config)
	for _, machine := range []string{"a", "b"} {
		for _, token := range []string{"one", "two"} {
			for number := range uint32(8) {
				c := node.Config{Machine: machine, Token: token, Node: id.Node(number)}
				for job := range id.Job(8) {
					uid := userOf(c, job, free)
					if other, ok := seen[uid]; ok || uid < firstUID || uid >= firstUID+uidCount || uid != int(int32(uid)) {
						t.Errorf("job %d of %+v is user %d, as one of %+v", job, c, uid, other)
					}
					if again := userOf(c, job, free); again != uid {
						t.Errorf("job %d of %+v is user %d, then %d", job, c, uid, again)
					}
					seen[uid] = c
				}
			}
		}
	}
	// Equal concatenations of different fields must not collide.
	if userOf(node.Config{Machine: "ab", Token: "c"}, 1, free) == userOf(node.Config{Machine: "a", Token: "bc"}, 1, free) {
		t.Error("machine ab with token c has the users of machine a with token bc")
	}
}

// Where hashes collide, the later job gets another id.
func TestUserTaken(t *testing.T) {
	c := node.Config{Machine: "a", Token: "one"}
	n := &Node{config: Config{Boot: c}, jobs: make(map[id.Job]*job)}
	var uids []int
	taken := func(uid int) bool {
		for _, u := range uids {
			if u == uid {
				return true
			}
		}
		return false
	}
	for range 4 { // the very same job every time
		uids = append(uids, userOf(c, 7, taken))
	}
	for i, uid := range uids {
		if taken := func(u int) bool { return i > 0 && u == uids[i-1] }; taken(uid) {
			t.Errorf("users %v", uids)
		}
	}
	n.jobs[1] = &job{uid: uids[0]}
	n.jobs[2] = &job{uid: uids[1]}
	j := &job{spec: JobSpec{Job: 7}}
	n.jobs[7] = j
	if n.chooseUser(j); j.uid != uids[2] {
		t.Errorf("beside %d and %d the job is user %d, want %d", uids[0], uids[1], j.uid, uids[2])
	}
}

package message

import (
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/keep"
	"margay/kernel/window"
)

// windowConfig describes the windows of this node to their server.
func (j *Job) windowConfig() window.Config {
	return window.Config{
		Self: j.config.Remote.Self, Keeper: j.config.Keeper, Fault: j.fault,
		Memory: func(rank id.Rank, number uint8) []byte {
			m, err := j.config.Set.Region(wire.WindowName(int(number), int(rank)), 0)
			if err != nil {
				return nil
			}
			return m.Bytes()
		},
		Changed: func(rank id.Rank) { j.local[rank].endpoint.RouseSleeper() },
		Idle: func(rank id.Rank) bool {
			area := j.local[rank].endpoint.Area()
			return area.Path().Load()&wire.PathSpin != 0 && area.ReceiveWaiting().Load() != 0
		},
	}
}

// windowPort returns the port at which this node kernel takes requests about windows from ranks of
// other nodes, and opens it if there is none yet; 0: it cannot be opened.
func (j *Job) windowPort() uint16 {
	j.opening.Lock()
	defer j.opening.Unlock()
	if j.windows == nil && !j.noWindows {
		s, err := window.New(j.windowConfig())
		if err != nil {
			j.noWindows = true
			j.engine.config.Log("job %d: requests about windows pass the node kernels: %v", j.config.Job, err)
			return 0
		}
		s.Start()
		j.windows = s
	}
	if j.windows == nil {
		return 0
	}
	return j.windows.Port()
}

// windowServer returns the server of requests about windows, nil if there is none.
func (j *Job) windowServer() *window.Server {
	j.opening.Lock()
	defer j.opening.Unlock()
	return j.windows
}

// admitClients lets the rank at the other end of mirrored channels use the windows of the local
// one.
func (j *Job) admitClients() {
	j.opening.Lock()
	defer j.opening.Unlock()
	if j.windows == nil {
		return
	}
	for _, p := range j.channels.Peerings() {
		j.windows.Admit(window.Client{
			Source: p.Rank, Target: j.config.Local[p.Local], Key: p.Own.Key, ReplyKey: p.Peer.Key, Address: p.Address, Journal: p.Journal,
		})
	}
	for _, r := range j.local {
		if r.isEnding() {
			j.windows.Ended(r.number)
		}
	}
}

// abandonWindows has the node kernel alone carry out requests about the windows of a rank that has
// ended.
func (j *Job) abandonWindows(r *rank) {
	j.opening.Lock()
	defer j.opening.Unlock()
	if j.windows != nil {
		j.windows.Ended(r.number)
	}
}

// adoptWindows takes over the server of an earlier node kernel. The server may start only after all
// regions are taken over.
func (j *Job) adoptWindows(items map[string]*keep.Item) (err error) {
	if j.config.Remote == nil {
		return nil
	}
	if j.windows, err = window.Adopt(j.windowConfig(), items); err != nil || j.windows == nil {
		return err
	}
	j.admitClients()
	j.windows.Start()
	return nil
}

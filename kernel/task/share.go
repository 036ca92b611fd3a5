package task

import (
	"fmt"
	"os"
	"time"

	"margay/internal/rights"
	"margay/kernel/keep"
	"margay/kernel/link"
)

// shareWait bounds how long the node kernel waits for room in the link to a relay.
const shareWait = 5 * time.Second

// OpenShare makes the link to the job's relay, and leaves both ends with the init. It must be
// called once before Start, if the job shares folders.
func (c *Container) OpenShare() error {
	near, far, err := link.Pair()
	if err != nil {
		return err
	}
	defer far.Close()
	own, err := near.Dup()
	if err != nil {
		near.Close()
		return err
	}
	defer own.Close()
	c.share = near
	return c.Keep(keep.Item{Name: ShareLink, Files: []*os.File{far, own}})
}

// adoptShare takes the link to the job's relay from the items that the init keeps, and returns the
// others.
func (c *Container) adoptShare(items []*keep.Item) (others []*keep.Item, err error) {
	for _, item := range items {
		if item.Name != ShareLink {
			others = append(others, item)
			continue
		}
		if len(item.Files) != 2 {
			rights.Close(item.Files)
			return others, fmt.Errorf("%d descriptors were kept of the link to them", len(item.Files))
		}
		item.Files[0].Close()
		c.share, err = link.NewConn(item.Files[1])
	}
	return others, err
}

// closeShare closes the link to the job's relay.
func (c *Container) closeShare() {
	if c.share != nil {
		c.share.Close()
	}
}

// Share gives the job's relay a stream to the job's client, in place of the last one. It stays the
// caller's.
func (c *Container) Share(stream *os.File) error {
	if c.share == nil {
		return fmt.Errorf("task: job %d shares no folders", c.spec.Job)
	}
	m := link.Message{Kind: ShareLink, Files: []*os.File{stream}}
	c.share.SetWriteDeadline(time.Now().Add(shareWait))
	if err := c.share.Send(m); err != nil {
		return fmt.Errorf("task: job %d: %w", c.spec.Job, err)
	}
	return nil
}

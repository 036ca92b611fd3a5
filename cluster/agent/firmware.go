package agent

import (
	"context"

	"margay/cluster/control"
	"margay/kernel/pstore"
)

// bringFirmwareLogs brings serve what the firmware of the node has kept of earlier boots, over the
// connection with which the node has registered. Firmware that is full keeps nothing more, so it is
// removed there, but only when serve has it. After an error, the next registration tries again.
func (a *Agent) bringFirmwareLogs(ctx context.Context, conn *control.Conn) {
	if a.config.FirmwareLogs == "" {
		return
	}
	select {
	case a.firmware <- struct{}{}: // the last connection's call has returned from Linux
		defer func() { <-a.firmware }()
	case <-ctx.Done():
		return
	}
	if err := a.moveFirmwareLogs(ctx, conn); err != nil && ctx.Err() == nil {
		a.config.Log("logs that the firmware has kept stay there: %v", err)
	}
}

func (a *Agent) moveFirmwareLogs(ctx context.Context, conn *control.Conn) error {
	for {
		r, err := pstore.Read(a.config.FirmwareLogs)
		if len(r.Files) == 0 {
			return err
		}
		if err != nil {
			a.config.Log("%v", err) // the others are read
		}
		if err := a.moveFirmwareLog(ctx, conn, r); err != nil {
			return err
		}
	}
}

func (a *Agent) moveFirmwareLog(ctx context.Context, conn *control.Conn, r pstore.Remains) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := conn.Call(ctx, &control.FirmwareLog{Text: r.Text}); err != nil {
		return err
	}
	return pstore.Remove(a.config.FirmwareLogs, r.Files)
}

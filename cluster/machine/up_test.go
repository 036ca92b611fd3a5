package machine

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/client"
)

// The wait for a serve that never answers, as on a full disk, is bounded.
func TestServeNeverAnswers(t *testing.T) {
	base(t)
	d := created(t, "m")
	if err := os.WriteFile(d.Log("serve"), []byte("the store is broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		go func() { result <- awaitNodes(t.Context(), d, UpOptions{Told: t.Logf}, make(chan error)) }()
		select {
		case err := <-result:
			if !errors.Is(err, client.ErrNoServe) || !strings.HasSuffix(err.Error(), "; the last lines of the log of serve:\n    the store is broken") {
				t.Errorf("the error is %v", err)
			}
		case <-time.After(time.Hour):
			t.Error("it still waits")
		}
	})
}

package machine_test

import (
	"testing"

	"margay/tools/margay/margaytest"
)

func TestMain(m *testing.M) { margaytest.Main(m) }

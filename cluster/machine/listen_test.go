package machine

import "testing"

func TestCheckListen(t *testing.T) {
	for address, good := range map[string]bool{
		"": true, ":7118": true, "127.0.0.1:0": true, "[::1]:7118": true, "host:7118": true,
		"7118": false, "host": false, ":": false, ":65536": false, ":-1": false, ":http": false, "::1:7118": false,
	} {
		if err := checkListen(address); (err == nil) != good {
			t.Errorf("%q: %v", address, err)
		}
	}
}

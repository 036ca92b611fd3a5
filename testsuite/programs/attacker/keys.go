package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// leaveKeys says which user this is, looks for keys that an earlier job has left, and leaves some.
func leaveKeys([]string) error {
	fmt.Println("user", os.Getuid())
	rings := map[string]int{"user": unix.KEY_SPEC_USER_KEYRING, "session": unix.KEY_SPEC_USER_SESSION_KEYRING}
	for name, ring := range rings {
		attempt([]try{{"find a key of another job: " + name, func() error {
			_, err := unix.KeyctlSearch(ring, "user", "left", 0)
			return err
		}}})
	}
	for _, ring := range rings {
		if _, err := unix.AddKey("user", "left", []byte("behind"), ring); err != nil {
			fmt.Println("no key is left:", err)
		}
	}
	return nil
}

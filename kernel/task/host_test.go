//go:build !guest

package task_test

// inGuest tells that the tests have a Linux kernel to themselves (testsuite/guest), and jobs their control groups.
const inGuest = false

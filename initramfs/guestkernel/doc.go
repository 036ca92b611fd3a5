// Package guestkernel describes a Linux kernel that nodes boot: the files of it in the layouts that
// distributions and builds use, its version, and the features that it lacks. It fetches nothing;
// package provision/linux does.
package guestkernel

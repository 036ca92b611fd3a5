// Package initramfs builds the image that a node boots from: two static programs, the kernel
// modules that the first one loads, and further files of the caller, in the form that Linux unpacks
// into its first root file system.
//
// # The image
//
// An image is a cpio archive of format newc
// (Documentation/driver-api/early-userspace/buffer-format.rst in Linux) in one .xz stream. It holds
// /init, which is the node's process 1; /sbin/margay-jobinit, which becomes process 1 of each job;
// /dev with console and null, /proc, /sys, /run and /tmp; each module, decompressed, under
// /lib/modules/VERSION; and /lib/modules/load-order, the absolute path of one module per line, each
// after its dependencies; process 1 loads them in this order.
//
// With Spec.Firmware it also has the firmware files that the modules name, below /lib/firmware.
// They are decompressed, because Linux need not be able to do that (CONFIG_FW_LOADER_COMPRESS), and
// the image is compressed as a whole.
//
// The bytes of an image depend only on the contents and modes of its files, and on the version of
// xz: directories are sorted by name and precede all files, which are sorted by size and then by
// name. Inode numbers count from 1, times are zero, and xz runs in one thread.
//
// A plain image (Spec.Plain) is the archive alone. Its modules have no signatures, unless the
// kernel insists on them or its configuration is unknown.
//
// # Files of one node
//
// The kernel also unpacks an archive after the stream, if it begins at a multiple of four bytes. So
// the files of one node (its number, its key) are appended to a copy of the image as a second
// archive, uncompressed: Overlay, WriteNodeImage. A file of the second archive replaces one of the
// same name in the first.
package initramfs

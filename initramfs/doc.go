// Package initramfs builds the image a node boots from: one static program, the kernel modules it loads, and whatever
// files the caller adds, in the form the Linux kernel unpacks into its first root file system.
//
// # The image
//
// An image is a cpio archive of format newc (Documentation/driver-api/early-userspace/buffer-format.rst in Linux) in one
// zstd frame. It holds /init, which is the node's process 1; /dev with console and null, /proc, /sys, /run and /tmp;
// each module, decompressed, under /lib/modules/VERSION; and /lib/modules/load-order, the absolute path of one module a
// line, each after the modules it depends on, which process 1 loads in this order.
//
// The bytes of an image depend on nothing but the contents and modes of what is in it: names are sorted, inode numbers
// count from 1, times are zero, compression runs in one thread.
//
// # What is one node's own
//
// The kernel unpacks what follows the frame as well, if it begins at a multiple of four bytes. So files of one node (its
// number, its key) are appended as a second archive, not compressed, to a copy of the image: Overlay, WriteNodeImage.
// A file of the second archive replaces one of the same name in the first.
package initramfs

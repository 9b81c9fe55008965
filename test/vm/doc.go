// Package vm runs compiled tests in a virtual machine with a distribution's
// kernel, for what the kernel of the machine at hand may lack: Geneve and
// WireGuard.
//
// The machine has no disk and no network device. Its initramfs, written here,
// holds the modules that the tests need, the test binaries, and a program that
// loads the former, runs the latter, and powers off. Results come over the
// serial console. It works without KVM, in three to four minutes.
//
// It needs qemu-system-x86_64 (Debian: qemu-system-x86) and, to get the kernel
// without installing it, apt-get and dpkg-deb; xz where modules are compressed.
// LIQONET_VM_KERNEL may name a directory with boot/vmlinuz-* and lib/modules
// instead, "/" for an installed kernel.
package vm

// Package vm runs compiled tests in a virtual machine with a distribution's kernel, because the local kernel may lack
// Geneve and WireGuard.
//
// The machine has no disk and no network device. Its initramfs, which this package writes, contains the modules that
// the tests need, the test binaries, and a program. The program loads the modules, runs the tests, and powers off.
// Results come over the serial console. It works without KVM, in three to four minutes.
//
// It needs qemu-system-x86_64 (Debian: qemu-system-x86) and, to get the kernel without installing it, apt-get and
// dpkg-deb; also xz if the modules are compressed.
package vm

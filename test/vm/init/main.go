// Command init is the first and only program of the virtual machine of package vm. It loads modules, runs tests, prints
// their result, and powers off.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func main() {
	status := 0
	if err := run(); err != nil {
		fmt.Println(err)
		status = 1
	}
	// Package vm waits for this line.
	fmt.Printf("\nLIQONET-VM-EXIT %d\n", status)
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("power off:", err)
	}
}

func run() error {
	for _, m := range []struct{ kind, dir string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"},
	} {
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	slices.Sort(modules)
	for _, m := range modules {
		if err := load(m); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	env, err := os.ReadFile("/env")
	if err != nil {
		return err
	}
	for _, variable := range strings.Fields(string(env)) {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	tests, err := filepath.Glob("/tests/*")
	if err != nil {
		return err
	}
	var failed []string
	for _, t := range tests {
		cmd := exec.Command(t, "-test.v", "-test.timeout=19m", "-test.run="+os.Getenv("LIQONET_TEST_RUN"))
		cmd.Dir, cmd.Stdout, cmd.Stderr = "/tmp", os.Stdout, os.Stdout
		cmd.Env = append(strings.Fields(string(env)), "TMPDIR=/tmp", "PATH=/")
		if err := cmd.Run(); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", filepath.Base(t), err))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
		return fmt.Errorf("load module %s: %w", filepath.Base(path), err)
	}
	return nil
}

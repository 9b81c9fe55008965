package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// modules returns the kernel modules that the tests need. All are loaded at the start, because the machine has no
// modprobe that the kernel could call.
func modules() []string {
	return []string{
		"veth", "bridge", "tun", "vxlan", "geneve", "wireguard", "nf_conntrack", "nf_conntrack_netlink", "nf_tables", "nft_ct", "nft_nat",
		"nft_masq", "nft_chain_nat", "nft_fib", "nft_fib_ipv4", "nft_fwd_netdev", "nft_limit",
	}
}

// softModules returns the modules that have to be loaded before the others if the kernel has them: modules request
// these by function, not by name. Newer kernels have nft_objref in nf_tables.
func softModules() []string {
	return []string{"crc32c_generic", "nft_objref"}
}

const (
	memoryMiB = 1024
	// Two emulated processors got stuck once, each waiting for the other. One is as fast, because the tests wait most
	// of the time.
	cpus = 1
	// exitMarker starts the line with the machine's result. The init program writes it.
	exitMarker = "LIQONET-VM-EXIT"
)

// Result is the result of one test or subtest in the machine.
type Result struct {
	Name    string
	Passed  bool
	Skipped bool
}

// Run boots a machine that runs compiled tests (static, without arguments) with environment variables, and returns all
// results. It writes the console's text to log. An error means that not all tests ended; the results until then are
// returned, too.
func Run(ctx context.Context, log io.Writer, tests map[string]string, env ...string) ([]Result, error) {
	k, err := findKernel(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "liqonet-vm-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	initramfs := filepath.Join(dir, "initramfs")
	if err := writeInitramfs(ctx, k, initramfs, dir, tests, env); err != nil {
		return nil, fmt.Errorf("write initramfs: %w", err)
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", fmt.Sprint(cpus), "-m", fmt.Sprint(memoryMiB),
		"-kernel", k.image, "-initrd", initramfs,
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off", "-serial", "stdio")
	var console bytes.Buffer
	cmd.Stdout = io.MultiWriter(log, &console)
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	results, exit := parse(console.String())
	switch {
	case ctx.Err() != nil:
		return results, fmt.Errorf("the virtual machine did not power off: %w", ctx.Err())
	case err != nil:
		return results, fmt.Errorf("run qemu: %w", err)
	case exit == "":
		return results, errors.New("the virtual machine ended without a result")
	case exit != "0":
		return results, fmt.Errorf("tests ended with status %s", exit)
	}
	return results, nil
}

// Build compiles the tests of a package so that they can run in the machine.
func Build(ctx context.Context, pkg, output string) error {
	return goCommand(ctx, "test", "-c", "-o", output, pkg)
}

func goCommand(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func writeInitramfs(ctx context.Context, k *kernel, path, dir string, tests map[string]string, env []string) error {
	initPath := filepath.Join(dir, "init")
	if err := goCommand(ctx, "build", "-o", initPath, "github.com/liqonet/liqonet/test/vm/init"); err != nil {
		return err
	}
	var names []string
	for _, name := range softModules() {
		if k.modules[name] != "" {
			names = append(names, name)
		}
	}
	mods, err := k.load(ctx, append(names, modules()...)...)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	a := &archive{w: f}
	for _, d := range []string{"dev", "proc", "sys", "tmp", "modules", "tests"} {
		a.dir(d)
	}
	for i, m := range mods {
		a.file(fmt.Sprintf("modules/%03d-%s", i, m.name), m.data)
	}
	a.file("env", []byte(strings.Join(env, "\n")))
	add := func(name, path string) error {
		data, err := os.ReadFile(path)
		a.file(name, data)
		return err
	}
	err = add("init", initPath)
	for name, path := range tests {
		err = errors.Join(err, add("tests/"+name, path))
	}
	return errors.Join(err, a.close(), f.Close())
}

// parse parses the output of `go test -v` and of the init program.
func parse(console string) (results []Result, exit string) {
	line := regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
	for text := range strings.Lines(console) {
		text = strings.TrimRight(text, "\r\n")
		if _, status, ok := strings.Cut(text, exitMarker+" "); ok {
			exit = strings.TrimSpace(status)
		}
		if m := line.FindStringSubmatch(text); m != nil {
			results = append(results, Result{Name: m[2], Passed: m[1] != "FAIL", Skipped: m[1] == "SKIP"})
		}
	}
	return results, exit
}

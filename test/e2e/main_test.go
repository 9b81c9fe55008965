package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
)

var (
	binDir  = flag.String("bin", filepath.Join("..", "..", "bin"), "directory of what make image built")
	labName = flag.String("lab", "e2e", "name of the lab")
	keep    = flag.Bool("keep", false, "use the lab if it is up, and leave it up")
	part    = flag.String("part", everyChange, "run this part of make test-long, instead of what guards every change")
	seed    = flag.Uint64("seed", 0, "repeat the random choices of an earlier run, which has printed its seed (default: another one in every run)")
)

const (
	// startTimeout includes building the lab's programs for the first time.
	startTimeout = 20 * time.Minute
	downTimeout  = time.Minute
)

func specs() []lab.ClusterSpec {
	all := []lab.ClusterSpec{
		{Name: "alpha", ProxyMode: lab.ProxyIPTables},
		{Name: "beta", ProxyMode: lab.ProxyNFTables},
		{Name: "gamma", PodCIDR: netip.MustParsePrefix("10.10.0.0/16"), MTU: 9000, ProxyMode: lab.ProxyNFTables},
		{
			Name: "delta", PodCIDR: netip.MustParsePrefix("10.244.128.0/17"),
			ServiceCIDR: netip.MustParsePrefix("10.112.0.0/16"), MTU: 1400,
			// Gateways know the pods one by one.
			NoNodeCIDRs: true,
		},
	}
	if *part == failoverPart || *part == outagesPart { // with a node that has no gateway
		for i := range all {
			all[i].Workers = 3
		}
	}
	return all
}

func TestMain(m *testing.M) {
	dataplane.ChildMain()
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if testing.Short() {
		fmt.Println("e2e: needs root and a lab, not run with -short")
		return 0
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run()
	}
	what := withLab
	if clusters := os.Getenv(childEnv); clusters != "" {
		what = func() (int, error) { return inLab(m, lane(clusters)) }
	}
	code, err := what()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return max(code, 1)
	}
	return code
}

func newLab() (*lab.Lab, error) {
	return lab.New(lab.Options{Name: *labName, Images: []string{program("liqonet-agent.tar")}, Log: os.Stderr})
}

// withLab runs this program again, as a child, while the lab is up.
func withLab() (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if os.Geteuid() != 0 {
		return 1, errors.New("the tests start clusters: run them as root (sudo), or with -short to leave them out")
	}
	if err := checkPrograms(ctx); err != nil {
		return 1, fmt.Errorf("%w: run `make image` first (make test-e2e does)", err)
	}
	if *seed == 0 {
		*seed = kit.Seed()
	}
	fmt.Printf("e2e: random choices by -seed %d\n", *seed)
	l, err := newLab()
	if err != nil {
		return 1, err
	}
	prepared := func() (int, error) {
		if err := deployAll(ctx, l); err != nil {
			return 1, err
		}
		return runLanes(ctx)
	}
	if *keep {
		if l.Healthy() == nil {
			return prepared()
		}
	}
	down := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
		defer cancel()
		return l.Down(ctx)
	}
	if err := down(); err != nil { // what an earlier run may have left, killed by SIGKILL
		return 1, err
	}
	up, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := l.Up(up, specs()...); err != nil {
		return 1, err
	}
	if !*keep {
		defer func() { err = errors.Join(err, down()) }()
	}
	return prepared()
}

func inLab(m *testing.M, own lane) (int, error) {
	l, err := newLab()
	if err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if fx, err = newFixture(ctx, l, own); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// program is the path of something that make image built.
func program(name string) string {
	abs, err := filepath.Abs(filepath.Join(*binDir, name))
	if err != nil {
		return filepath.Join(*binDir, name)
	}
	return abs
}

// checkPrograms makes sure that the CLI and the image belong together: the CLI
// installs the image of its own version.
func checkPrograms(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, program("kubectl-liqonet"), "version").Output()
	if err != nil {
		return err
	}
	archive := program("liqonet-agent.tar")
	manifest, err := exec.CommandContext(ctx, "tar", "-xOf", archive, "manifest.json").Output()
	if err != nil {
		return fmt.Errorf("%s: manifest.json: %w", archive, err)
	}
	_, version, _ := strings.Cut(string(out), "agents ")
	if tag, _, found := strings.Cut(version, "\n"); !found || !strings.Contains(string(manifest), strconv.Quote(tag)) {
		return fmt.Errorf("%s has the images %s, but the CLI is\n%s", archive, manifest, out)
	}
	return nil
}

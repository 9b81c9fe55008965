package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// lane is a set of clusters that a test has to itself. Tests of different lanes run
// at the same time, each lane in a process of its own, unless they share clusters.
type lane string

const (
	laneEqual lane = "alpha,beta"
	laneOther lane = "gamma,delta"
	laneAll   lane = "alpha,beta,gamma,delta"
)

func (l lane) clusters() []string { return strings.Split(string(l), ",") }

// place says where a test runs and when.
type place struct {
	lane lane
	// part is empty for what guards every change. The others are parts of
	// `make test-long`.
	part string
	// whole is the part that runs a test with all of its cases, where some of them, other
	// ones in each run, guard every change.
	whole string
	// byTurns says that one of these tests, of all lanes, guards every change, another one in each run.
	byTurns bool
}

// in says if a test belongs to a part.
func (p place) in(part string) bool { return p.part == part || p.whole != "" && p.whole == part }

// whole says that tests run with all of their cases.
func whole() bool { return *part != everyChange }

// sample returns the numbers of the cases of n that this run has, in their order: some,
// which r chooses, or all.
func sample(r *rand.Rand, n, some int) []int {
	if whole() {
		some = n
	}
	chosen := r.Perm(n)[:some]
	slices.Sort(chosen)
	return chosen
}

// everyChange is the part without a name.
const everyChange = ""

// childEnv tells the processes that run the tests of a lane from the one that holds
// the lab.
const childEnv = "LIQONET_E2E_LANE"

// runLanes runs the tests that the flags select: those of alpha and beta at the same time as those
// of gamma and delta, then those of all clusters.
func runLanes(ctx context.Context) (int, error) {
	selected, err := selectTests(ctx)
	if err != nil {
		return 1, err
	}
	if len(selected[laneEqual]) > 0 && len(selected[laneOther]) > 0 {
		// The output of the second lane follows that of the first.
		second := &turn{to: os.Stdout}
		codes, errs := make([]int, 2), make([]error, 2)
		var wg sync.WaitGroup
		wg.Go(func() {
			codes[0], errs[0] = child(ctx, laneEqual, os.Stdout, selected[laneEqual])
			second.begin()
		})
		wg.Go(func() { codes[1], errs[1] = child(ctx, laneOther, second, selected[laneOther]) })
		wg.Wait()
		code, err := max(codes[0], codes[1]), errors.Join(errs...)
		if err != nil || len(selected[laneAll]) == 0 {
			return code, err
		}
		last, err := child(ctx, laneAll, os.Stdout, selected[laneAll])
		return max(code, last), err
	}
	code := 0
	for _, l := range []lane{laneEqual, laneOther, laneAll} {
		if len(selected[l]) == 0 {
			continue
		}
		c, err := child(ctx, l, os.Stdout, selected[l])
		if err != nil {
			return c, err
		}
		code = max(code, c)
	}
	return code, nil
}

// selectTests returns the arguments by which the tests of each lane are selected.
func selectTests(ctx context.Context) (map[lane][]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pattern, benchmarks := flag.Lookup("test.run").Value.String(), flag.Lookup("test.bench").Value.String()
	names := func(pattern string) ([]string, error) {
		out, err := exec.CommandContext(ctx, self, "-test.list", cmp.Or(pattern, ".")).Output()
		return slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool { return !strings.HasPrefix(name, "Test") }), err
	}
	out := map[lane][]string{}
	if benchmarks != "" {
		out[laneAll] = []string{"-test.bench=" + benchmarks}
	}
	first, rest, sub := strings.Cut(pattern, "/")
	if sub {
		rest = "/" + rest
	}
	wanted, err := names(first)
	if err != nil {
		return nil, fmt.Errorf("list the tests of %q: %w", first, err)
	}
	if pattern == "" && *part == everyChange {
		wanted = takeTurns(rand.New(rand.NewPCG(*seed, 0)), wanted)
	}
	byLane := map[lane][]string{}
	for _, name := range wanted {
		// Who names tests gets them, whichever part they belong to.
		p, ok := places[name]
		if !ok || name == "TestChaos" && isLongChaos() {
			p = place{lane: laneAll}
		}
		if pattern != "" && *part == everyChange || p.in(*part) {
			byLane[p.lane] = append(byLane[p.lane], name)
		}
	}
	for l, names := range byLane {
		out[l] = append(out[l], "-test.run=^("+strings.Join(names, "|")+")$"+rest)
	}
	if len(out)+len(byLane) == 0 {
		return nil, fmt.Errorf("no test is called %q, of part %q", pattern, *part)
	}
	if _, tests := byLane[laneAll]; benchmarks != "" && !tests {
		out[laneAll] = append(out[laneAll], "-test.run=^$")
	}
	return out, nil
}

// takeTurns leaves out all but one of the tests that run by turns.
func takeTurns(r *rand.Rand, names []string) []string {
	var waiting []string
	for _, name := range names {
		if places[name].byTurns {
			waiting = append(waiting, name)
		}
	}
	if len(waiting) > 0 {
		waiting[r.IntN(len(waiting))] = ""
	}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(waiting, name) })
}

// child runs this program again, with tests of a lane.
func child(ctx context.Context, l lane, stdout io.Writer, selection []string) (int, error) {
	// The child is killed with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(ctx, self, slices.Concat(os.Args[1:], []string{"-seed", fmt.Sprint(*seed), "-test.parallel=8"}, selection)...)
	cmd.Env = append(os.Environ(), childEnv+"="+string(l))
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil // it has said why
	}
	return 0, err
}

// turn keeps what is written until it is its turn.
type turn struct {
	to    io.Writer
	mu    sync.Mutex
	begun bool
	kept  bytes.Buffer
}

func (t *turn) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun {
		return t.to.Write(p)
	}
	return t.kept.Write(p)
}

func (t *turn) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = true
	_, _ = t.kept.WriteTo(t.to) // like everything that is printed
}

// Parts of `make test-long`, each of less than an hour.
const (
	// networks: clusters as clouds and distributions make them; all that users see of a peering.
	networksPart = "networks"
	// failures: commands that fail, are interrupted or stopped; clusters and gateways that are cut off.
	failuresPart = "failures"
	// writes: commands that die after each of their writes.
	writesPart = "writes"
	// damages: all that happens to agents, nodes and links, and all ways to an MTU.
	damagesPart  = "damages"
	failoverPart = "failover"
	// outages: nodes that are replaced, clusters that reboot, planes that are bad.
	outagesPart = "outages"
	// checks: what commands that look for faults say of faults that were made.
	checksPart = "checks"
	// faults: each of thirty is named by doctor. healthy: nothing is called broken that is not.
	faultsPart  = "faults"
	healthyPart = "healthy"
	// services: services of one cluster that are used in others.
	servicesPart = "services"
)

// places says where tests run. One that is not here needs all clusters, and runs with
// every change.
var places = map[string]place{
	"TestBehindNAT":            {lane: laneEqual, whole: networksPart, byTurns: true},
	"TestFailedPeer":           {lane: laneEqual, whole: failuresPart, byTurns: true},
	"TestInterrupted":          {lane: laneEqual, whole: failuresPart, byTurns: true},
	"TestKilledAfterEachWrite": {lane: laneEqual, whole: writesPart, byTurns: true},
	"TestKubectlCompletes":     {lane: laneEqual},
	"TestPeering":              {lane: laneEqual, whole: networksPart},
	"TestServices":             {lane: laneEqual, whole: servicesPart},
	"TestUnpeerPartialState":   {lane: laneEqual, whole: failuresPart, byTurns: true},
	"TestVerifyFaults":         {lane: laneEqual, whole: checksPart, byTurns: true},
	// It only reads.
	"TestEachStatementHasATest": {lane: laneEqual, whole: servicesPart},

	"TestChaos":                        {lane: laneOther, byTurns: true},
	"TestKilledAfterEachWriteOfUnpeer": {lane: laneOther, whole: writesPart, byTurns: true},
	"TestMTU":                          {lane: laneOther, whole: damagesPart, byTurns: true},
	"TestNodesComeAndGo":               {lane: laneOther, whole: damagesPart, byTurns: true},
	"TestPeeringDeletedByHand":         {lane: laneOther, whole: failuresPart, byTurns: true},
	"TestPlanes":                       {lane: laneOther},
	"TestStopped":                      {lane: laneOther, whole: failuresPart, byTurns: true},
	"TestTroubles":                     {lane: laneOther, whole: damagesPart, byTurns: true},

	"TestRotateKeys":         {lane: laneAll, whole: outagesPart, byTurns: true},
	"TestPermissionsAreUsed": {lane: laneAll},
	"TestTopologies":         {lane: laneAll, whole: networksPart, byTurns: true},

	"TestAskedBeforePeering":            {lane: laneAll, part: networksPart},
	"TestDefaultDeny":                   {lane: laneEqual, part: networksPart},
	"TestEndpointsNameChanges":          {lane: laneOther, part: networksPart},
	"TestFirewalld":                     {lane: laneEqual, part: networksPart},
	"TestLoadBalancerChangesItsAddress": {lane: laneOther, part: networksPart},
	"TestMappedRangeUsedInPeer":         {lane: laneAll, part: networksPart},
	"TestNetworkPolicy":                 {lane: laneAll, part: networksPart},
	"TestNetworks":                      {lane: laneAll, part: networksPart},
	"TestPeculiarNodes":                 {lane: laneAll, part: networksPart},
	"TestTakenOverGateway":              {lane: laneAll, part: networksPart},

	"TestAPIServersAway":     {lane: laneOther, part: failuresPart},
	"TestGatewayCutOff":      {lane: laneOther, part: failuresPart},
	"TestPlaneCutOffFromAPI": {lane: laneOther, part: failuresPart},
	"TestStaleConnections":   {lane: laneOther, part: failuresPart},

	// Alone, so that nothing else delays what is measured.
	"TestConditionsDuringFaults": {lane: laneAll, part: outagesPart},
	"TestFailover":               {lane: laneAll, part: failoverPart},
	"TestFailoverOfOtherRanges":  {lane: laneAll, part: failoverPart},
	"TestPlanesOnReplacedNodes":  {lane: laneAll, part: outagesPart},
	"TestPlanesThatAreBad":       {lane: laneAll, part: outagesPart},
	"TestRebootedClusters":       {lane: laneAll, part: outagesPart},

	"TestVerifyKilled":        {lane: laneEqual, part: checksPart},
	"TestVerifyRestricted":    {lane: laneEqual, part: checksPart},
	"TestVerifyTopologies":    {lane: laneAll, part: checksPart},
	"TestMaladies":            {lane: laneOther, whole: faultsPart, byTurns: true},
	"TestDoctorBeforePeering": {lane: laneEqual, part: faultsPart},
	"TestHealthyNetworks":     {lane: laneAll, part: healthyPart},

	"TestImportsGo":               {lane: laneOther, part: servicesPart},
	"TestPeeringWithoutServices":  {lane: laneOther, part: servicesPart},
	"TestRestartsWithdrawNothing": {lane: laneOther, part: servicesPart},
	"TestKEP":                     {lane: laneAll, part: servicesPart},
	"TestKindsOfServices":         {lane: laneAll, part: servicesPart},
	// Alone, so that nothing else delays what is measured.
	"TestRollingUpdate":        {lane: laneAll, part: servicesPart},
	"TestServicesAreWithdrawn": {lane: laneAll, part: servicesPart},
	"TestServicesLatency":      {lane: laneAll, part: servicesPart},

	// With three nodes.
	"TestUpgrade": {lane: laneEqual, part: outagesPart},
}

package e2e

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"testing"
)

// step is one of a test, with a name.
type step struct {
	name string
	test func(t *testing.T)
}

// One peering for all that looks at what users see of it. A dry run says
// before what will be made.
func TestPeering(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	reader := readers(t, ctx, a, b)
	plans := dryRun(t, ctx, reader, a, b)
	liqonet(t, ctx, "", "expose-host", a.Name, b.Name, b.machine(t).addr.String()).refused(t, exitUsage)
	fileA, fileB := kubeadmFile(t, t.TempDir(), a), kubeadmFile(t, t.TempDir(), b)
	said := mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	parts := []step{
		{"as the dry run said", func(t *testing.T) { dryRunWasRight(t, ctx, plans, a, b) }},
		{"again", func(t *testing.T) { peerAgain(t, ctx, a, b, fileA, fileB) }},
		{"verify", func(t *testing.T) { checkVerified(t, ctx, a, b) }},
		{"exposed host", func(t *testing.T) { exposeHost(t, ctx, a, b) }},
		{"service with a remote endpoint", func(t *testing.T) { serviceWithRemoteEndpoint(t, ctx, a, b) }},
		{"status", func(t *testing.T) { statusTellsTheTruth(t, ctx, a, b, said) }},
	}
	for _, part := range parts {
		runPart(t, ctx, part.name, part.test, a, b)
	}
	liqonet(t, ctx, "/nonexistent", "unpeer", fileB, fileA).ends(t, 0)
	checkNothingLeft(t, ctx)
}

// One peering for all that is done to agents, nodes and the ways between them. Both
// clusters have other links than those of TestPeering, and the gateways of delta know
// pods one by one.
func TestTroubles(t *testing.T) {
	ctx := begin(t)
	a, b := fx.gamma, fx.delta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name)
	// Whatever is done to one cluster, the other one has nothing to do.
	quiet := watchQuiet(t, ctx, b)
	runPart(t, ctx, "a renamed interface", func(t *testing.T) { underlayRenamed(t, ctx, a, b) }, a, b)
	t.Run("nothing to do", quiet)
	t.Run("damages", func(t *testing.T) { selfRepair(t, ctx, a, b) })
	checkNothingLeft(t, ctx)
}

// runPart runs a part of a test. After it failed, clusters are peered again, so that
// the next one fails by its own faults only.
func runPart(t *testing.T, ctx context.Context, name string, test func(t *testing.T), a, b *cluster) {
	t.Helper()
	if t.Run(name, test) {
		return
	}
	t.Log(fx.diagnosis(ctx))
	liqonet(t, ctx, "", "unpeer", a.Name, b.Name)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name)
}

// random makes the choices of a test, by the run's seed.
func random(t testing.TB) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name())) // it never fails
	return rand.New(rand.NewPCG(*seed, h.Sum64()))
}

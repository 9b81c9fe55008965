package peering_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// waits are the steps in which a command waits for another's lock, and their durations.
type waits struct {
	mu  sync.Mutex
	all map[string]time.Duration
}

func (w *waits) Step(ctx context.Context, name string, do func(context.Context) error) error {
	began := time.Now()
	err := do(ctx)
	if strings.Contains(name, "waiting for") {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all[name] += time.Since(began)
	}
	return err
}

// Commands on different peerings of one cluster wait at most a second for each other. A third peering stays, so none is the last one.
func TestPairsDoNotWaitForEachOther(t *testing.T) {
	kit.Play(t)
	a := peering.NewCouple(t, false, false).A
	peers := []*peering.Site{peering.NewSite(t, "d", "10.244.0.0/16", "172.18.4.11"), peering.NewSite(t, "e", "10.244.0.0/16", "172.18.5.11")}
	for _, p := range peers {
		p.Peer = a
	}
	all := func(do func(*kube.Cluster, kube.Reporter) error) {
		t.Helper()
		w := &waits{all: map[string]time.Duration{}}
		var commands sync.WaitGroup
		for _, p := range peers {
			commands.Go(func() {
				kit.CheckNoError(t, do(p.Cluster, w))
			})
		}
		commands.Wait()
		for name, took := range w.all {
			kit.ErrorIf(t, took > time.Second, "%s: %s", name, took)
		}
	}
	all(func(p *kube.Cluster, r kube.Reporter) error {
		return kit.Err(peering.Peer(t.Context(), a.Cluster, p, engine.Options{}, r))
	})
	all(func(p *kube.Cluster, r kube.Reporter) error {
		return kit.Err(peering.Rotate(t.Context(), a.Cluster, p, peering.Rotation{PresharedOnly: true}, r))
	})
	// On its other side, each is the last peering, which is ignored here: removing all of liqonet must wait.
	all(func(p *kube.Cluster, r kube.Reporter) error {
		peer := *p
		peer.SkipReason = kube.ErrSkipped
		_, _, err := peering.Unpeer(t.Context(), a.Cluster, &peer, r)
		return err
	})
	if entries := kubetest.ReadLedger(t, a.Cluster).Spec.Peers; len(entries) != 1 || slices.ContainsFunc(peers, func(p *peering.Site) bool { return p.ID == entries[0].ClusterID }) {
		t.Errorf("peers are left: %+v", entries)
	}
}

// Doctor reports a lock whose holder does not renew it, and which command works on a cluster. Neither is a failure.
func TestDoctorNamesLocks(t *testing.T) {
	kit.Play(t)
	a, b := peering.NewSite(t, "a", "10.244.0.0/16", "172.18.1.11"), peering.NewSite(t, "b", "10.30.0.0/16", "172.18.3.11")
	_, held, err := lock.Acquire(t.Context(), "peer", kube.Quiet{}.Step, engine.LockFor(b.Cluster, a.ID))
	kit.NoError(t, err)
	diagnose := func() (*doctor.Facts, *check.Report) {
		t.Helper()
		facts := kit.Must(diagnose.ReadFacts(t.Context(), []*kube.Cluster{a.Cluster, b.Cluster}, nil, kube.Quiet{}))(t)
		return facts, doctor.Examine(facts)
	}
	abandoned := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "liqonet-cluster",
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}, Annotations: map[string]string{"liqonet.io/running": "3s"},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("upgrade of u@m (12345678)")},
	}
	kit.NoError(t, a.Raw.Create(t.Context(), abandoned))
	facts, report := diagnose()
	if l := facts.Clusters[1].Locks; len(l) != 1 || l[0].IsExpired || !strings.HasPrefix(l[0].Name, "peer of ") || !strings.Contains(lock.Holder(l[0]).String(), "(Lease kube-system/liqonet-peering-"+a.ID+")") {
		t.Errorf("of b it says %v", l)
	}
	l := facts.Clusters[0].Locks
	kit.ErrorIf(t, len(l) != 1 || !l[0].IsExpired, "of a it says %v", l)
	i := slices.IndexFunc(report.Checks, func(c check.Check) bool { return c.Name == "liqonet-lock-01" })
	found := report.Checks[i].Findings
	kit.FatalIf(t, len(found) != 1 || found[0].Cluster != "a" || found[0].Result != check.Warning, "it finds %+v", found)
	for got, want := range map[string]string{
		found[0].Problem:  "upgrade of u@m (12345678), which has run for 3s, does not renew its lock",
		found[0].Evidence: "Lease kube-system/liqonet-cluster was created ",
		found[0].Hint:     " -n kube-system delete lease liqonet-cluster",
	} {
		kit.ErrorIf(t, !strings.Contains(got, want), "it says %q, want %q", got, want)
	}

	// The next command takes it over.
	held.Release()
	a.PeerAgain(t, b)
	facts, report = diagnose()
	kit.ErrorIf(t, len(facts.Clusters[0].Locks)+len(facts.Clusters[1].Locks)+len(report.Checks[i].Findings) > 0,
		"afterwards: %+v", report.Checks[i])
}

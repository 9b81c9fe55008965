package peering

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
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/kit"
)

// waits are the steps in which a command waits for the lock of another one, and how long each took.
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

// Commands on different peerings of one cluster wait for each other a second at most. A third peering stays, so none is the last one.
func TestPairsDoNotWaitForEachOther(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a := newCouple(t, false, false).a
	peers := []*site{newSite(t, "d", "10.244.0.0/16", "172.18.4.11"), newSite(t, "e", "10.244.0.0/16", "172.18.5.11")}
	for _, p := range peers {
		p.peer = a
	}
	all := func(do func(*Cluster, Reporter) error) {
		t.Helper()
		w := &waits{all: map[string]time.Duration{}}
		var commands sync.WaitGroup
		for _, p := range peers {
			commands.Go(func() {
				if err := do(p.Cluster, w); err != nil {
					t.Error(err)
				}
			})
		}
		commands.Wait()
		for name, took := range w.all {
			if took > time.Second {
				t.Errorf("%s: %s", name, took)
			}
		}
	}
	all(func(p *Cluster, r Reporter) error {
		_, err := Peer(t.Context(), a.Cluster, p, Options{}, r)
		return err
	})
	all(func(p *Cluster, r Reporter) error {
		_, err := Rotate(t.Context(), a.Cluster, p, Rotation{PresharedOnly: true}, r)
		return err
	})
	// The other side of each is its last peering, and is left: what has to wait is what removes all of liqonet.
	all(func(p *Cluster, r Reporter) error {
		peer := *p
		peer.Unasked = ErrUnwanted
		_, _, err := Unpeer(t.Context(), a.Cluster, &peer, r)
		return err
	})
	if entries := readLedger(t, a.Cluster).Spec.Peers; len(entries) != 1 || slices.ContainsFunc(peers, func(p *site) bool { return p.ID == entries[0].ClusterID }) {
		t.Errorf("peers are left: %+v", entries)
	}
}

// Doctor names a lock whose holder does not renew it, and says who works on a cluster. That is no fault.
func TestDoctorNamesLocks(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := newSite(t, "a", "10.244.0.0/16", "172.18.1.11"), newSite(t, "b", "10.30.0.0/16", "172.18.3.11")
	_, held, err := lock.Take(t.Context(), "peer", quietly, b.lock(a.ID))
	if err != nil {
		t.Fatal(err)
	}
	diagnose := func() (*doctor.Facts, *doctor.Report) {
		t.Helper()
		facts, err := ReadFacts(t.Context(), []*Cluster{a.Cluster, b.Cluster}, make([]error, 2), DoctorOptions{ObjectsOnly: true}, Silent{})
		if err != nil {
			t.Fatal(err)
		}
		return facts, doctor.Examine(facts)
	}
	abandoned := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "liqonet-cluster",
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}, Annotations: map[string]string{"liqonet.io/running": "3s"},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("upgrade of u@m (12345678)")},
	}
	if err := a.raw.Create(t.Context(), abandoned); err != nil {
		t.Fatal(err)
	}
	facts, report := diagnose()
	if texts := facts.Clusters[1].Locks; len(texts) != 1 || !strings.HasPrefix(texts[0], "peer of ") || !strings.Contains(texts[0], "(Lease kube-system/liqonet-peering-"+a.ID+")") {
		t.Errorf("of b it says %q", texts)
	}
	if texts := facts.Clusters[0].Locks; len(texts) > 0 {
		t.Errorf("of a it says %q", texts)
	}
	i := slices.IndexFunc(report.Checks, func(c doctor.Check) bool { return c.Name == "liqonet-lock-01" })
	found := report.Checks[i].Findings
	if len(found) != 1 || found[0].Cluster != "a" || found[0].Result != doctor.Warning {
		t.Fatalf("it finds %+v", found)
	}
	for got, want := range map[string]string{
		found[0].What:     "upgrade of u@m (12345678), which has run for 3s, does not renew its lock",
		found[0].Evidence: "Lease kube-system/liqonet-cluster was made ",
		found[0].Hint:     " -n kube-system delete lease liqonet-cluster",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
	}

	// The next command takes it over.
	held.Release()
	a.peer, b.peer = b, a
	mustPeer(t, a, b, Options{})
	facts, report = diagnose()
	if len(facts.Clusters[0].Locks)+len(facts.Clusters[1].Locks)+len(report.Checks[i].Findings) > 0 {
		t.Errorf("afterwards: %+v", report.Checks[i])
	}
}

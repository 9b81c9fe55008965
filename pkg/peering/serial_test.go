package peering

import (
	stdcmp "cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// process is a command that can be suspended, as by SIGSTOP.
type process struct {
	mu sync.Mutex
	// writes counts its writes. It is suspended before the write with number at. The request in flight is sent on
	// resumption.
	writes, at int
	others     func()
	// goesOn resumes it, nil if it is not suspended.
	goesOn chan struct{}
}

// gate blocks a request while the process is suspended.
func (p *process) gate() {
	p.mu.Lock()
	goesOn := p.goesOn
	p.mu.Unlock()
	if goesOn != nil {
		<-goesOn
	}
}

// write does a write for which the lock was checked before the process was suspended.
func (p *process) write(ctx context.Context, r *fakeapi.Request, api client.WithWatch) error {
	p.gate()
	if r.IsLock() {
		return r.SendTo(ctx, api)
	}
	end, err := lock.BeginWrite(ctx)
	if err != nil {
		return err
	}
	defer end()
	p.mu.Lock()
	p.writes++
	stops := p.writes == p.at
	if stops {
		p.goesOn = make(chan struct{})
	}
	p.mu.Unlock()
	if stops {
		p.others()
		p.mu.Lock()
		close(p.goesOn)
		p.goesOn = nil
		p.mu.Unlock()
	}
	p.gate()
	return r.SendTo(ctx, api)
}

// of returns a cluster as the process reaches it.
func (p *process) of(w *Site) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		switch {
		case r.Reads():
			p.gate()
			return r.Send(ctx)
		case strings.HasSuffix(r.Kind, "Review"):
			return r.Send(ctx)
		}
		return p.write(ctx, r, w.Raw)
	})
}

// verbs are the commands that write, each with a setting that only it decides.
var verbs = map[string]func(ctx context.Context, a, b *kube.Cluster) error{
	"peer": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Peer(ctx, a, b, engine.Options{Image: "image:3"}, kube.Quiet{}))
	},
	"unpeer": func(ctx context.Context, a, b *kube.Cluster) error {
		_, _, err := Unpeer(ctx, a, b, kube.Quiet{})
		return err
	},
	"upgrade": func(ctx context.Context, a, b *kube.Cluster) error {
		out, err := UpgradeAll(ctx, []*kube.Cluster{a, b}, Newer(), kube.Quiet{})
		for _, o := range out {
			err = errors.Join(err, o.Err)
		}
		return err
	},
	"rotate-keys": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Rotate(ctx, a, b, Rotation{}, kube.Quiet{}))
	},
	"expose-host": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(ExposeHost(ctx, a, b, netip.MustParseAddr("192.0.2.7"), kube.Quiet{}))
	},
}

// couple is two clusters, and a third one which stays peered with the first unless they are alone.
type couple struct{ A, b *Site }

func NewCouple(t *testing.T, isPeered, isAlone bool) couple {
	a, b := TwoSites(t)
	if !isAlone {
		a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
		a.Peer = b
	}
	if isPeered {
		MustPeer(t, a, b, engine.Options{})
	}
	return couple{a, b}
}

func (w couple) do(t *testing.T, verb string) error {
	return verbs[verb](t.Context(), w.A.Cluster, w.b.Cluster)
}

// generations match parts of names and fields that count key replacements or depend on key bytes.
var generations = regexp.MustCompile(`(liqonet-overlay-|gateway-[a-z]+-[0-9]+-(?:psk-)?|"(?:keyG|overlayKeyG|g)eneration":|"key","path":"|"(?:fingerprint|identityKey|remotePublicKey|keyTime|liqonet.io/fingerprint)":"?)[^",}]+`)

// state returns all objects in both clusters that commands write, without bytes and generations of keys. Keys of each
// kind are counted.
func (w couple) state(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, s := range []*Site{w.A, w.b} {
		contents := s.contents(t)
		for _, name := range slices.Sorted(maps.Keys(contents)) {
			content := contents[name].(map[string]any)
			if content["immutable"] == true {
				delete(content, "data")
			}
			for _, a := range []string{"liqonet.io/touched", v1alpha1.AnnotationKeyExchange} {
				unstructured.RemoveNestedField(content, "metadata", "annotations", a)
			}
			if owners, ok, _ := unstructured.NestedSlice(content, "metadata", "ownerReferences"); ok {
				for _, o := range owners {
					p := kit.Must(kube.Get[v1alpha1.Peering](t.Context(), s.Cluster, "", fmt.Sprint(o.(map[string]any)["name"])))(t)
					if p != nil && string(p.UID) == o.(map[string]any)["uid"] {
						o.(map[string]any)["uid"] = "that of the Peering"
					}
				}
				kit.NoError(t, unstructured.SetNestedSlice(content, owners, "metadata", "ownerReferences"))
			}
			raw := kit.Must(json.Marshal(content))(t)
			name, text := generations.ReplaceAllString(s.Name+": "+name, "${1}N"), generations.ReplaceAllString(string(raw), "${1}N")
			for out[name] != "" {
				name += " again"
			}
			out[name] = text
		}
	}
	return out
}

// settle runs the next command of a user who wants the current peerings, as in the ledger of a.
func (w couple) settle(t *testing.T) {
	t.Helper()
	entry, err := w.A.ReadLedgerEntry(t.Context(), w.b.ID)
	if err == nil && entry != nil {
		_, err = Peer(t.Context(), w.A.Cluster, w.b.Cluster, engine.Options{}, kube.Quiet{})
	} else if err == nil {
		_, _, err = Unpeer(t.Context(), w.A.Cluster, w.b.Cluster, kube.Quiet{})
	}
	kit.ErrorIf(t, err != nil, "the next command: %v", err)
}

// serial returns the final states if commands run one after the other.
func serial(t *testing.T, isPeered, isAlone bool, order ...string) (end map[string]string) {
	synctest.Test(t, func(t *testing.T) {
		w := NewCouple(t, isPeered, isAlone)
		for _, verb := range order {
			_ = w.do(t, verb) // it may fail
		}
		w.settle(t)
		end = w.state(t)
	})
	return end
}

// A command that is suspended before any of its writes, while another one runs to completion, does not change what the other
// decided, and reports which command took over. In the end the clusters are as if both had run in sequence, or only one.
// States are compared after one more command. A command that lost its lock is run again, as its error advises, if possible.
func TestCommandsAreSerial(t *testing.T) {
	kit.Play(t)
	t.Logf("-seed %d", kubetest.Seed())
	r := rand.New(rand.NewPCG(kubetest.Seed(), 0))
	type play struct {
		first, second     string
		isPeered, isAlone bool
	}
	var plays []play
	for _, second := range slices.Sorted(maps.Keys(verbs)) {
		for _, first := range slices.Sorted(maps.Keys(verbs)) {
			plays = append(plays, play{first, second, true, false}, play{first, second, true, true})
		}
		plays = append(plays, play{"peer", second, false, false}, play{"peer", second, false, true})
	}
	if !kit.Full() {
		r.Shuffle(len(plays), func(i, j int) { plays[i], plays[j] = plays[j], plays[i] })
		plays = plays[:1]
	}
	for _, p := range plays {
		start := r.IntN(50) + 1
		t.Run(fmt.Sprintf("%s next to %s, peered %t, alone %t", p.first, p.second, p.isPeered, p.isAlone), func(t *testing.T) {
			t.Parallel()
			first := serial(t, p.isPeered, p.isAlone, p.first, p.second)
			ends := map[string]map[string]string{
				"both": first, "the other order": serial(t, p.isPeered, p.isAlone, p.second, p.first), "the second": serial(t, p.isPeered, p.isAlone, p.second),
				"the first": serial(t, p.isPeered, p.isAlone, p.first), "both, and the first again": serial(t, p.isPeered, p.isAlone, p.first, p.second, p.first),
			}
			step, isDone := 29, false
			if kit.Full() {
				start, step = 1, 1
			}
			for at := start; !isDone && !t.Failed() && (kit.Full() || at <= start+step); at += step {
				synctest.Test(t, func(t *testing.T) {
					w := NewCouple(t, p.isPeered, p.isAlone)
					stopped := &process{at: at}
					was, refused, again := false, false, false
					stopped.others = func() {
						was = true
						err := w.do(t, p.second)
						refused = err != nil && doesNotFit(err)
						kit.ErrorIf(t, err != nil && !refused, "before write %d: %s: %v", at, p.second, err)
					}
					err := verbs[p.first](t.Context(), stopped.of(w.A), stopped.of(w.b))
					if isDone = !was; isDone {
						return
					}
					t.Logf("before write %d: %v", at, err)
					isLast := p.second == "unpeer" && err != nil && strings.Contains(err.Error(), "such as unpeer of the last peering")
					kit.ErrorIf(t, err != nil && !isLast && !strings.Contains(err.Error(), "overtaken by "+p.second+" of "),
						"before write %d: %s: %v", at, p.first, err)
					// Of unpeer and a command that leaves the peering as it is, only unpeer decides.
					if err != nil && (p.first != "unpeer" || p.second == "upgrade") && (p.second != "unpeer" || p.first == "upgrade") {
						again = true
						err := w.do(t, p.first)
						if p.first == "upgrade" && err != nil && doesNotFit(err) && !p.isAlone { // b no longer has agents
							_, err = UpgradeAll(t.Context(), []*kube.Cluster{w.A.Cluster}, Newer(), kube.Quiet{})
						}
						kit.ErrorIf(t, err != nil && !doesNotFit(err), "before write %d: %s, again: %v", at, p.first, err)
					}
					w.settle(t)
					end, least := w.state(t), ""
					for name, want := range ends {
						// The second command may need what only the first one has installed.
						if name == "the first" && !refused || name == "both, and the first again" && !again {
							continue
						}
						diff := cmp.Diff(want, end)
						if diff == "" {
							return
						}
						if diff = name + ": " + diff; least == "" || len(diff) < len(least) {
							least = diff
						}
					}
					t.Errorf("before write %d: it ended with %v; as none of the orders leave it; the nearest is %s", at, err, stdcmp.Or(least, "none"))
				})
			}
		})
	}
}

// doesNotFit reports whether a command does not apply to the current state.
func doesNotFit(err error) bool {
	e := (*kube.Error)(nil)
	return errors.As(err, &e) && (e.Kind == kube.Usage || errors.Is(err, kube.ErrUnpeered))
}

// stopAt suspends the process just before the nth deletion of the object. before runs outside of the process before each deletion.
func (p *process) stopAt(w *Site, kind, name string, nth int, before func(n int)) *kube.Cluster {
	var mu sync.Mutex
	n := 0
	c := p.of(w)
	c.Client = fakeapi.Intercept(c.Client, func(ctx context.Context, r *fakeapi.Request) error {
		if r.Of("delete", kind) && r.Name == name {
			mu.Lock()
			n++
			k := n
			mu.Unlock()
			before(k)
			if k == nth {
				p.mu.Lock()
				p.at = p.writes + 1
				p.mu.Unlock()
			}
		}
		return r.Send(ctx)
	})
	return c
}

// A peer that removes a plane is suspended before it retries a deletion. Another peer re-adds that plane: its gateway
// stays.
func TestSleepsBeforeASecondDeletion(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, b := pairOf(t, 2)
		name := v1alpha1.GatewayName("b", 1)
		p := &process{}
		other := false
		p.others = func() {
			other = true
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Planes: 2}, kube.Quiet{})
			kit.ErrorIf(t, err != nil, "the other one: %v", err)
		}
		ca := p.stopAt(a, "Deployment", name, 2, func(n int) {
			if n > 1 {
				return
			}
			// As its controller may do at any time, this changes the status, and so the resourceVersion.
			d := Get(t, a, v1alpha1.Namespace, name, &appsv1.Deployment{})
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: "True"})
			kit.NoError(t, a.Raw.Status().Update(t.Context(), d))
		})
		_, err := Peer(t.Context(), ca, p.of(b), engine.Options{Planes: 1}, kube.Quiet{})
		t.Logf("the one that slept: %v", err)
		kit.FatalIf(t, !other, "it never slept")
		left := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}, &appsv1.Deployment{})
		planes := a.planesTo(t, b)
		kit.ErrorIf(t, left != nil && len(planes) == 2,
			"the other command has decided for 2 planes, the Peering names %d, and gateway %s: %v", len(planes), name, left)
	})
}

// unpeer takes a lock from an upgrade that is suspended while rolling back. The upgrade does not delete what a later peer relies on.
func TestUnpeerChangesWhatTheOvertakenKnow(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		w := NewCouple(t, true, false)
		a, b := w.A, w.b
		d := NewSite(t, "d", "10.70.0.0/16", "172.18.7.11")
		roles := List[rbacv1.ClusterRoleList](t, a)
		name := ""
		for _, r := range roles.Items {
			if r.Labels[v1alpha1.LabelPeering] == "" && r.Labels[v1alpha1.LabelManagedBy] == v1alpha1.FieldManager && strings.Contains(r.Name, "node") {
				name = r.Name
				if err := a.Raw.Delete(t.Context(), &r); err != nil { // the new version has another one
					t.Fatal(err)
				}
			}
		}
		kit.FatalIf(t, name == "", "%v", roles.Items)
		slept := false
		p := &process{}
		p.others = func() {
			slept = true
			MustUnpeer(t, a, b)
			a.Lossy, a.Peer, d.Peer = "", d, a
			_, err := Peer(t.Context(), a.Cluster, d.Cluster, engine.Options{}, kube.Quiet{})
			kit.ErrorIf(t, err != nil, "peer: %v", err)
			err = a.Raw.Get(t.Context(), types.NamespacedName{Name: name}, &rbacv1.ClusterRole{})
			kit.ErrorIf(t, err != nil, "after peer: %v", err)
		}
		a.Lossy = "image:2"
		out, err := UpgradeAll(t.Context(), []*kube.Cluster{p.stopAt(a, "ClusterRole", name, 1, func(int) {})}, Newer(), kube.Quiet{})
		t.Logf("the upgrade that slept: %v, %+v", err, out)
		kit.FatalIf(t, !slept, "it never slept")
		kit.CheckNoError(t, a.Raw.Get(t.Context(), types.NamespacedName{Name: name}, &rbacv1.ClusterRole{}))
	})
}

// rotate-keys is suspended before one of its writes, and one for another pair of the same cluster takes over and completes.
// After each write, agents mount only keys that exist, as each Site checks. peer completes what was left.
func TestRotationOvertakenByAnotherPair(t *testing.T) {
	kit.Play(t)
	const writes = 160
	for _, i := range kubetest.Moments(t, writes/4, 2) {
		at := 4 * i
		synctest.Test(t, func(t *testing.T) {
			a, b := pairOf(t, 2)
			d := a.PeeredWith(t, "d", "10.244.0.0/16", "172.18.4.11")
			a.Peer = b
			was := false
			p := &process{at: at}
			p.others = func() {
				was = true
				a.Peer = d
				err := kit.Err(Rotate(t.Context(), a.Cluster, d.Cluster, Rotation{}, kube.Quiet{}))
				kit.ErrorIf(t, err != nil, "before write %d: rotate-keys of the other pair: %v", at, err)
				a.Peer = b
			}
			_, err := Rotate(t.Context(), p.of(a), p.of(b), Rotation{}, kube.Quiet{})
			kit.ErrorIf(t, !was || err == nil || !strings.Contains(err.Error(), "overtaken by rotate-keys of "), "before write %d: %v", at, err)
			MustPeer(t, a, b, engine.Options{})
			for _, w := range []*Site{a, b, d} {
				w.checkKeys(t)
			}
		})
	}
}

// tardy is a cluster that, once, runs a function before it returns its ledger, when wait has ended.
func tardy(w *Site, wait <-chan struct{}, do func()) *kube.Cluster {
	once := sync.Once{}
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Of("get", "ClusterNetwork") {
			once.Do(func() {
				<-wait
				do()
			})
		}
		return r.Send(ctx)
	})
}

// withLiar returns a and c, which are not peered yet, and m, which claims to be c.
func withLiar(t *testing.T) (a, c, m *Site) {
	t.Helper()
	a, c = NewSite(t, "a", "10.244.0.0/16", "172.18.1.11"), NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	m = NewSite(t, "c", "10.40.0.0/16", "172.18.4.11")
	m.Name = "m"
	a.Peer, c.Peer, m.Peer = c, a, a
	return a, c, m
}

// A cluster that claims to be c responds only after a was peered with c. It is not accepted as c.
func TestPeerComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Play(t)
	a, c, m := withLiar(t)
	read := make(chan struct{})
	wasRead := sync.OnceFunc(func() { close(read) })
	first := a.afterIdentity(wasRead)
	var before *v1alpha1.Peering
	identity := ""
	liar := tardy(m, read, func() {
		MustPeer(t, a, c, engine.Options{})
		before, identity = a.peeringNamed(t, "c"), kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey
	})
	_, err := Peer(t.Context(), first, liar, engine.Options{}, kube.Quiet{})
	kit.ErrorIf(t, err == nil, "m was taken for c")
	after := a.peeringNamed(t, "c")
	kit.FatalIf(t, before == nil, "c was not peered")
	if cmp.Diff(before.Spec, after.Spec, kit.Compare) != "" || kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey != identity {
		t.Errorf("key of c's gateway %s, now %s; c's pods %v, now %v; identity in the ledger %s, now %s",
			before.Spec.Planes[0].RemotePublicKey, after.Spec.Planes[0].RemotePublicKey, before.Spec.Remote.Pods, after.Spec.Remote.Pods, identity, kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey)
	}
}

// The same for unpeer.
func TestUnpeerComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Play(t)
	a, c, m := withLiar(t)
	wait := make(chan struct{})
	close(wait)
	was := false
	liar := tardy(m, wait, func() {
		MustPeer(t, a, c, engine.Options{})
		was = true
	})
	_, _, err := Unpeer(t.Context(), a.Cluster, liar, kube.Quiet{})
	kit.ErrorIf(t, err == nil, "m was taken for c")
	cn, readErr := a.ReadLedger(t.Context())
	kit.ErrorIf(t, !was || readErr != nil || cn == nil || len(cn.Spec.Peers) == 0, "the peering of a and c is gone (%v)", err)
}

// While a is being peered with c, a host is to be exposed to a cluster that claims to be c. It is exposed to neither.
func TestExposeHostComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, c, m := withLiar(t)
		var exposed error
		done := make(chan struct{})
		kit.Must(Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{}, Steps{"Waiting until packets pass": func() {
			go func() {
				defer close(done)
				_, exposed = ExposeHost(kit.Timeout(t, time.Minute), a.Cluster, m.Cluster, netip.MustParseAddr("192.0.2.7"), kube.Quiet{})
			}()
			synctest.Wait()
		}}))(t)
		<-done
		kit.ErrorIf(t, exposed == nil, "m was taken for c")
		hosts := a.peeringNamed(t, "c").Spec.Local.Hosts
		kit.ErrorIf(t, len(hosts) > 0, "c reaches %v", hosts)
	})
}

package peering

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// rollbackTimeout is the time that taking back may need, beyond the command's
// own timeout.
const rollbackTimeout = 30 * time.Second

// overlayKeyBytes is the length of what the agents ask for (overlay.KeyBytes,
// which is in a package that knows the kernel).
const overlayKeyBytes = 32

// Result of Peer.
type Result struct {
	// Changed lists what was changed, as "cluster: object". Empty if the clusters
	// were peered already, just so.
	Changed []string
	// Views are both sides', in the order of the arguments.
	Views [2]View
}

// Peer makes the pods of both clusters reach each other. It returns when
// packets pass, from every node that is ready, by agents as they were applied. If it fails, it removes the
// peering again, or, where that had worked before, puts it back as it was.
func Peer(ctx context.Context, a, b *Cluster, o Options, r Reporter) (Result, error) {
	p := &peer{options: o, reporter: r}
	return p.peer(ctx, a, b)
}

func (p *peer) peer(ctx context.Context, a, b *Cluster) (Result, error) {
	if a.ID == b.ID {
		return Result{}, sameCluster(a, b)
	}
	p.sides = [2]*side{{Cluster: a}, {Cluster: b}}
	p.serverGiven = p.options.Server == a.ID || p.options.Server == b.ID
	err := ended(ctx, p.run(ctx))
	if err == nil || !p.touched {
		return p.result, err
	}
	undo, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), rollbackTimeout, fmt.Errorf("not done after %s", rollbackTimeout))
	defer cancel()
	again := "unpeer"
	var undoErr error
	if p.sides[0].wasEstablished || p.sides[1].wasEstablished {
		again = "peer"
		undoErr = p.restore(undo)
	} else {
		_, _, undoErr = Unpeer(undo, a, b, p.reporter)
	}
	if undoErr == nil && len(p.taken) > 0 && !p.again {
		next := &peer{options: p.options.reserving(p.taken), reporter: p.reporter, turn: p.turn, handOver: p.handOver, again: true}
		return next.peer(ctx, a, b)
	}
	if undoErr != nil {
		return p.result, errors.Join(err, fmt.Errorf("what was done could not be taken back: %w; run: kubectl liqonet %s %s %s", undoErr, again, a.Name, b.Name))
	}
	return p.result, err
}

type peer struct {
	sides    [2]*side
	options  Options
	reporter Reporter
	// plan as it was made last.
	plan *plan.Plan
	// touched says that something may have been changed.
	touched bool
	// unanswered says since when both gateways have applied their configuration and
	// no packet passes.
	unanswered time.Time
	quiet      [2]bool
	mu         sync.Mutex
	// tried are the ways by which one gateway called the other in vain.
	tried []string
	// serverGiven says that the user said who is called.
	serverGiven bool
	// turn waits until it is this pair's turn to claim ranges, handOver lets the
	// next one; nil where there is one pair only.
	turn     func(context.Context) error
	handOver func()
	// taken are ranges that nodes were found to have after the overlay had got
	// addresses of them, by the cluster's ID; again says that this was so before.
	taken map[string][]netip.Prefix
	again bool
	// ledgers are those that earlier plans leave behind, by the cluster's ID.
	ledgers map[string]*v1alpha1.ClusterNetwork
	result  Result
}

func (p *peer) run(ctx context.Context) error {
	if err := p.reporter.Step(ctx, "Reading both clusters", p.discover); err != nil {
		return err
	}
	if err := p.reporter.Step(ctx, "Installing the node agents", p.install); err != nil {
		return err
	}
	for {
		if err := p.reporter.Step(ctx, "Pushing ranges, keys and gateways", p.push); err != nil {
			return err
		}
		err := p.reporter.Step(ctx, "Waiting until packets pass", p.wait)
		if !errors.Is(err, errUnanswered) {
			return p.explain(err)
		}
		client := p.sides[0]
		if p.plan.Clusters[0].Role == v1alpha1.Server {
			client = p.sides[1]
		}
		p.tried = append(p.tried, p.attempt())
		p.options.Server = client.ID
	}
}

// both runs do for both sides at once. Each is given itself and its peer, and
// returns what it changed.
func (p *peer) both(ctx context.Context, do func(ctx context.Context, s, peer *side) ([]string, error)) error {
	g, ctx := errgroup.WithContext(ctx)
	var changed [2][]string
	for i := range p.sides {
		g.Go(func() (err error) {
			changed[i], err = do(ctx, p.sides[i], p.sides[1-i])
			return err
		})
	}
	err := g.Wait()
	p.result.Changed = append(append(p.result.Changed, changed[0]...), changed[1]...)
	return err
}

// index of a side.
func (p *peer) index(s *side) int {
	if s == p.sides[0] {
		return 0
	}
	return 1
}

func (p *peer) planOf(s *side) *plan.ClusterPlan { return &p.plan.Clusters[p.index(s)] }

// observe reads both clusters and makes the plan.
func (p *peer) observe(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		return nil, s.observe(ctx, peer.Cluster, p.options)
	})
	if err != nil {
		return err
	}
	for _, s := range p.sides {
		if after := p.ledgers[s.ID]; after != nil {
			s.facts.Ledger = after
		}
	}
	return p.makePlan()
}

// override takes what the user overrules into the facts of both clusters.
func (p *peer) override() {
	for _, s := range p.sides {
		s.facts.Overrides = p.options.of(s.ID)
	}
}

// makePlan plans with what is known now.
func (p *peer) makePlan() (err error) {
	p.override()
	p.plan, err = plan.Make(p.sides[0].facts, p.sides[1].facts)
	return err
}

// discover makes a plan before anything is changed: what cannot work is refused
// here, as far as it is known without agents.
func (p *peer) discover(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, _ *side) ([]string, error) {
		return nil, s.may(ctx, toInstall())
	})
	if err != nil {
		return err
	}
	return p.observe(ctx)
}

// refuse fails if a backend that the user asks for is none that the kernels can
// serve: before there is more than the agents.
func (p *peer) refuse() error {
	p.override()
	return plan.Check(&p.sides[0].facts, &p.sides[1].facts)
}

func (p *peer) install(ctx context.Context) error {
	if p.turn != nil {
		if err := p.turn(ctx); err != nil {
			return err
		}
	}
	p.touched = true
	err := p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		changed, err := s.install(ctx, peer.Cluster, s, p.planOf(s))
		if err != nil {
			return changed, err
		}
		s.facts.Reports, err = s.nodeReports(ctx)
		return changed, err
	})
	if err == nil {
		err = p.checkInternal(ctx)
	}
	if err != nil {
		return err
	}
	return p.refuse()
}

// checkInternal fails if the overlay of a cluster has addresses that one of its
// nodes has for something else, which only agents see. Where a peer depends on
// them already, it is too late to choose others.
func (p *peer) checkInternal(ctx context.Context) error {
	for _, s := range p.sides {
		cn, err := s.Cluster.ledger(ctx)
		if err != nil {
			return err
		}
		if cn == nil || slices.ContainsFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.Established }) {
			continue
		}
		for _, n := range s.facts.Reports {
			for _, r := range n.Status.Routes {
				if !r.Overlaps(cn.Spec.InternalCIDR.Prefix) {
					continue
				}
				if p.taken == nil {
					p.taken = map[string][]netip.Prefix{}
				}
				p.taken[s.ID] = append(p.taken[s.ID], r.Prefix)
				err = errors.Join(err, &Error{
					Kind: Ranges, Cluster: s.Name, Doing: "find a range for the overlay",
					Err:  fmt.Errorf("%s, which was chosen, has a part of %s, to which node %s has a route", cn.Spec.InternalCIDR, r, n.Spec.NodeName),
					Hint: fmt.Sprintf("try again with --reserve %s=%s", s.Name, r),
				})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reserving are the options with ranges that are not to be used, by the cluster's
// ID.
func (o Options) reserving(taken map[string][]netip.Prefix) Options {
	facts := maps.Clone(o.Facts)
	if facts == nil {
		facts = map[string]discovery.Overrides{}
	}
	for id, ranges := range taken {
		f := facts[id]
		f.Reserved = append(slices.Clone(f.Reserved), ranges...)
		facts[id] = f
	}
	o.Facts = facts
	return o
}

// push makes the plan with what the agents have reported, and carries it out.
func (p *peer) push(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, peer *side) (changed []string, err error) {
		allocated := false
		s.facts.Ledger, err = s.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) (err error) {
			before := cn.DeepCopy()
			allocated, err = plan.Allocate(cn, &s.facts, &peer.facts)
			switch {
			case err != nil:
				return err
			case !allocated:
				return errUnchanged
			}
			s.journal.ranges(s.Cluster, peer.ID, before)
			return nil
		})
		if err != nil {
			return nil, s.fail("allocate ranges", err)
		}
		if allocated {
			changed = append(changed, s.Name+": ranges of the ledger")
		}
		return changed, nil
	})
	if err != nil {
		return err
	}
	// Not before the other side has chosen ranges: it looks at this one's endpoints.
	err = p.both(ctx, func(ctx context.Context, s, peer *side) (changed []string, err error) {
		name := plan.Allocation(s.facts.Ledger, peer.ID).Name
		if err := s.readPeering(ctx, name, &s.facts); err != nil {
			return changed, err
		}
		for _, g := range p.planOf(s).Gateways {
			g.Peering = name // the ledger may have given another one than was planned
			public, isNew, err := s.ensureKey(ctx, g.Gateway)
			if isNew {
				changed = append(changed, s.Name+": WireGuard key")
			}
			if err != nil {
				return changed, err
			}
			facts := s.facts.Planes[g.Plane]
			facts.PublicKey = public
			s.facts.Planes[g.Plane] = facts
		}
		return changed, nil
	})
	if err != nil {
		return err
	}
	if p.handOver != nil {
		p.handOver()
	}
	if err := p.makePlan(); err != nil {
		return err
	}
	// The client needs to be told where the server is; all else goes side by side.
	var endpoints [][]string
	known := make(chan struct{})
	return p.both(ctx, func(ctx context.Context, s, peer *side) (changed []string, err error) {
		c := p.planOf(s)
		for _, g := range c.Gateways {
			more, err := s.applyGateway(ctx, g)
			changed = append(changed, more...)
			if err != nil {
				return changed, err
			}
		}
		if c.Role == v1alpha1.Server {
			for _, g := range c.Gateways {
				e, err := s.currentEndpoints(ctx, g.Gateway)
				if err != nil {
					return changed, err
				}
				endpoints = append(endpoints, e)
			}
			close(known)
		} else {
			select {
			case <-known:
			case <-ctx.Done():
				return changed, s.fail("wait for the address of the other's gateway", context.Cause(ctx))
			}
		}
		for i := range c.Peering.Spec.Planes {
			plane := &c.Peering.Spec.Planes[i]
			plane.RemotePublicKey = peer.facts.Planes[plane.Index].PublicKey
			if c.Role == v1alpha1.Client {
				plane.Endpoints = endpoints[i]
			}
		}
		more, err := s.applyNoting(ctx, &s.journal, c.Peering)
		changed = append(changed, more...)
		if err == nil {
			s.journal.translation(s)
			err = s.applyTranslation(ctx, c.Peering, c.Translation)
		}
		for _, g := range c.Gateways {
			if err != nil || s.facts.Existing == nil {
				break
			}
			if before := s.facts.Existing.Plane(g.Plane); before != nil && before.Role != g.Role {
				err = s.restartGateway(ctx, g.Gateway)
			}
		}
		return changed, err
	})
}

// applyGateway applies the objects of a gateway, and deletes a Service that it does
// not need any more.
func (s *side) applyGateway(ctx context.Context, g plan.GatewayPlan) (changed []string, err error) {
	first, deployment := g.Objects()
	if g.Service != nil {
		first = append(first, g.Service)
	}
	for _, objs := range [][]client.Object{first, {deployment}} {
		more, err := s.applyNoting(ctx, &s.journal, objs...)
		changed = append(changed, more...)
		if err != nil {
			return changed, err
		}
	}
	if g.StaleService != nil {
		s.journal.deleted(s.Cluster, g.StaleService)
		if err := s.delete(ctx, g.StaleService); err != nil {
			return changed, err
		}
		changed = append(changed, s.Name+": "+describe(g.StaleService))
	}
	return changed, nil
}

// restartGateway lets the gateway begin anew where its role was exchanged: one
// that was a client goes on to call the endpoint that it has learned.
func (s *side) restartGateway(ctx context.Context, g manifests.Gateway) error {
	var pods corev1.PodList
	if err := s.Client.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels(g.Labels())); err != nil {
		return s.fail("list the pods of gateway "+g.Name(), err)
	}
	for i := range pods.Items {
		if err := s.delete(ctx, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// ensureKey makes the key of a gateway, if it has none, and returns its public half.
func (c *Cluster) ensureKey(ctx context.Context, g manifests.Gateway) (public string, isNew bool, err error) {
	secret, isNew, err := c.ensureSecret(ctx, g.SecretName(), func() (*corev1.Secret, error) {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return nil, fmt.Errorf("make a WireGuard key: %w", err)
		}
		public := key.PublicKey()
		return g.Secret(map[string][]byte{v1alpha1.KeyFilePrivate: key[:], v1alpha1.KeyFilePublic: public[:]}), nil
	})
	if err != nil {
		return "", isNew, err
	}
	key, err := wgtypes.NewKey(secret.Data[v1alpha1.KeyFilePrivate])
	if err != nil {
		return "", isNew, c.fail("read the key in Secret "+secret.Name, errors.New("it is not a WireGuard key"))
	}
	return key.PublicKey().String(), isNew, nil
}

// ensureOverlayKey makes the key of the cluster's overlay, if it has none.
func (c *Cluster) ensureOverlayKey(ctx context.Context) (key manifests.OverlayKey, isNew bool, err error) {
	secret, isNew, err := c.ensureSecret(ctx, v1alpha1.OverlaySecret, func() (*corev1.Secret, error) {
		key := make([]byte, overlayKeyBytes)
		_, err := rand.Read(key)
		return manifests.OverlaySecret(key), err
	})
	if err != nil {
		return "", isNew, err
	}
	raw := secret.Data[v1alpha1.OverlayKeyFile]
	if len(raw) != overlayKeyBytes {
		return "", isNew, c.fail("read the key in Secret "+secret.Name, fmt.Errorf("it has %d bytes instead of %d", len(raw), overlayKeyBytes))
	}
	return manifests.OverlayKeyOf(raw), isNew, nil
}

// ensureSecret reads a Secret of ours, or makes it. It is created and never
// applied: whoever comes second reads the first one's.
func (c *Cluster) ensureSecret(ctx context.Context, name string, generate func() (*corev1.Secret, error)) (secret *corev1.Secret, isNew bool, err error) {
	for {
		secret = &corev1.Secret{}
		err = c.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}, secret)
		if err == nil {
			return secret, false, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, false, c.fail("read Secret "+name, err)
		}
		if secret, err = generate(); err != nil {
			return nil, false, err
		}
		err = c.Client.Create(ctx, secret, client.FieldOwner(v1alpha1.FieldManager))
		if err == nil {
			return secret, true, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, false, c.fail("create Secret "+name, err)
		}
	}
}

// currentEndpoints waits until the gateway's Service has addresses, and returns
// them as host:port in the order in which they should be tried; or what the user
// gave.
func (s *side) currentEndpoints(ctx context.Context, g manifests.Gateway) (out []string, err error) {
	if given := s.facts.GivenEndpoints(g.Plane); len(given) > 0 {
		return given, nil
	}
	hint := fmt.Sprintf("%s -n %s describe service %s; or choose another --service-type", s.kubectl(), v1alpha1.Namespace, g.Name())
	err = s.poll(ctx, fmt.Sprintf("wait for an address of Service %s (%s)", g.Name(), g.ServiceType), hint, func(ctx context.Context) (string, error) {
		svc := &corev1.Service{}
		if err := s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: g.Name()}, svc); err != nil {
			return "", err
		}
		out = plan.ServiceEndpoints(svc, s.facts.Nodes)
		if len(out) == 0 {
			return "it has none yet", nil
		}
		return "", nil
	})
	return out, err
}

// errUnanswered says that one gateway called the other in vain, and that it may
// be tried the other way round.
var errUnanswered = errors.New("no answer")

// defaultPatience is longer than a call of all endpoints takes, and the time that
// a Service needs to work.
const defaultPatience = 12 * time.Second

// answerless notes whether a gateway has applied all and has no connection. It
// says true when that holds for both, and for so long that the roles should be
// exchanged: not where the user said who is the server, and not in a peering that
// has worked.
func (p *peer) answerless(s *side, quiet bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet[p.index(s)] = quiet
	if !p.quiet[0] || !p.quiet[1] {
		p.unanswered = time.Time{}
		return false
	}
	if p.unanswered.IsZero() {
		p.unanswered = time.Now()
	}
	if p.serverGiven {
		return false
	}
	for _, s := range p.sides {
		if s.wasEstablished || s.hasGivenEndpoints() {
			return false
		}
	}
	// Longer each time: on a slow machine the first way may have been right.
	return time.Since(p.unanswered) > cmp.Or(p.options.Patience, defaultPatience)<<min(len(p.tried), 4)
}

// attempt says who called whom.
func (p *peer) attempt() string {
	server, caller := &p.plan.Clusters[0], &p.plan.Clusters[1]
	if server.Role != v1alpha1.Server {
		server, caller = caller, server
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Since(p.unanswered).Round(time.Second)
	p.quiet, p.unanswered = [2]bool{}, time.Time{}
	var endpoints []string
	for _, plane := range caller.Peering.Spec.Planes {
		endpoints = append(endpoints, plane.Endpoints...)
	}
	return fmt.Sprintf("%s called %s at %s (%s) for %s", caller.Cluster, server.Cluster,
		strings.Join(endpoints, ", "), server.Gateways[0].ServiceType, took)
}

// explain adds to the error of a wait what was tried, if nothing was answered.
func (p *peer) explain(err error) error {
	e := (*Error)(nil)
	if err == nil || !errors.As(err, &e) || e.Kind != NotReady || p.unanswered.IsZero() && len(p.tried) == 0 {
		return err
	}
	tried := p.tried
	if !p.unanswered.IsZero() {
		tried = append(tried, p.attempt())
	}
	return &Error{
		Kind: NotReady, Cluster: e.Cluster, Doing: e.Doing,
		Err: fmt.Errorf("no gateway reaches the other: %s; %w", strings.Join(tried, "; "), e.Err),
		Hint: "open the way for UDP to one of these addresses, or say how a cluster can be called: --service-type CLUSTER=LoadBalancer, " +
			"--service-type CLUSTER=NodePort:PORT with --endpoint CLUSTER=ADDRESS:PORT, --server CLUSTER",
	}
}

// wait returns when both gateways and all nodes measure that packets pass, and
// their agents are those that were applied.
func (p *peer) wait(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		hint := fmt.Sprintf("%s -n %s logs -l app.kubernetes.io/name=liqonet --prefix", s.kubectl(), v1alpha1.Namespace)
		return nil, s.poll(ctx, fmt.Sprintf("wait until packets pass to %q", peer.Name), hint, func(ctx context.Context) (string, error) {
			if err := s.podProblem(ctx); err != nil {
				return "", err
			}
			return p.look(ctx, s, peer)
		})
	})
	if err != nil {
		return err
	}
	return p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		_, err := s.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
			a := plan.Allocation(cn, peer.ID)
			if a == nil || a.Established {
				return errUnchanged
			}
			a.Established = true
			return nil
		})
		return nil, s.fail("write to the ledger that the peering works", err)
	})
}

// look takes the side's view of the peering into the result, and says what is
// still missing.
func (p *peer) look(ctx context.Context, s, peer *side) (string, error) {
	live := &v1alpha1.Peering{}
	if err := s.Client.Get(ctx, types.NamespacedName{Name: plan.Allocation(s.facts.Ledger, peer.ID).Name}, live); err != nil {
		return "", err
	}
	var nodes v1alpha1.NodeNetworkList
	if err := s.Client.List(ctx, &nodes); err != nil {
		return "", err
	}
	ready, err := s.agentNodes(ctx)
	if err != nil {
		return "", err
	}
	v, err := view(s.Name, live, nodes.Items, ready, s.now())
	if err != nil {
		return "", err
	}
	p.result.Views[p.index(s)] = v
	plane := live.PlaneStatus(live.Spec.Planes[0].Index)
	if p.answerless(s, plane != nil && plane.ObservedGeneration == live.Generation && !plane.Connected) {
		return "", errUnanswered
	}
	if reason := settled(live, v); reason != "" {
		return reason, nil
	}
	// Agents before those that were applied may have reported all of this.
	for _, g := range p.planOf(s).Gateways {
		if missing, err := s.rolledOut(ctx, g.Gateway, live, nodes.Items, ready); err != nil || missing != "" {
			return missing, err
		}
	}
	return "", nil
}

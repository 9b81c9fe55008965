package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// UpgradeOptions are the options of an upgrade.
type UpgradeOptions struct {
	// Image of the agents, of this command's version. Empty for automatic.
	Image string
	// soak is how long packets must pass through replaced gateways, and lossTimeout how long they may fail: 0 for
	// ProbeExpiry and lossTimeout.
	soak, lossTimeout time.Duration
}

// Upgraded is the result for one cluster.
type Upgraded struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	// From and To are the versions of the agents, Image is their current image.
	From  string `json:"from"`
	To    string `json:"to"`
	Image string `json:"image"`
	// Changed lists the changes, as "cluster: object".
	Changed []string `json:"changed"`
	// Notes are messages for the user.
	Notes []string `json:"notes,omitempty"`
	// Err is why the cluster's agents do not have the version.
	Err error `json:"-"`
}

// upgrades are the clusters of one command.
type upgrades struct {
	all []*upgrade
	// temporary are pairs of indexes of peered clusters, as in the plan.
	temporary [][2]int
	// unverified tell which clusters could not prove their identity to a peer among them, as something may not be read.
	unverified []string
	reporter   kube.Reporter
}

// upgrade is one cluster during the command.
type upgrade struct {
	side     *engine.Side
	plan     *plan.Upgrade
	options  UpgradeOptions
	reporter kube.Reporter
	err      error
}

// isDone reports whether there was nothing to do.
func (u *upgrade) isDone() bool { return u.plan.Changes() == 0 }

// upgradeRollbackTimeout is how long a rollback may take beyond the command's own timeout: gateways are rolled back one
// plane at a time.
const upgradeRollbackTimeout = 5 * time.Minute

// UpgradeAll upgrades the agents of clusters to this command's version in steps, while packets pass, and checks the
// probes after each step. If packets are lost, it rolls back that cluster and continues with the others. It changes
// no other clusters. Running it again completes an interrupted upgrade.
//
// The error is about all clusters. Errors in Upgraded are about one.
func UpgradeAll(ctx context.Context, clusters []*kube.Cluster, o UpgradeOptions, r kube.Reporter) ([]Upgraded, error) {
	// A rejected plan leaves no trace, not even a lock.
	u, err := planUpgrades(ctx, clusters, o, r, false)
	clusters = lo.Map(clusters, func(c *kube.Cluster, _ int) *kube.Cluster { return c.Recording() })
	for i := 0; len(clusters) > 1 && i < len(clusters); i++ { // all of them are locked
		var stop context.CancelFunc
		clusters[i], ctx, stop = clusters[i].WatchResponses(ctx)
		defer stop()
	}
	if err == nil && len(u.unverified) > 0 {
		hint := kube.Unchanged(clusters...) + "use kubeconfigs whose users may read Secret " + v1alpha1.Namespace + "/" + manifests.IdentitySecretName
		err = &kube.Error{Kind: kube.Identity, Op: "upgrade", Err: errors.New(u.unverified[0]), Hint: hint}
	}
	var all []lock.Cluster
	for _, c := range clusters {
		if err == nil {
			err = c.CheckPermissions(ctx, engine.InstallPermissions())
		}
		all = append(all, engine.LockFor(c, ""))
	}
	if err == nil {
		err = engine.WithLocks(ctx, "upgrade", r.Step, all, func(ctx context.Context) (err error) {
			if u, err = planUpgrades(ctx, clusters, o, r, true); err != nil {
				return err
			}
			u.run(ctx)
			return lock.Lost(ctx)
		})
	}
	if err != nil {
		return nil, kube.ContextError(ctx, err)
	}
	out := make([]Upgraded, len(clusters))
	for i, c := range clusters {
		is := u.all[i]
		engine.TryRetireUnusedKeys(ctx, c)
		out[i] = Upgraded{
			Cluster: c.Name, ClusterID: c.ID, From: is.plan.From, To: is.plan.To, Image: is.plan.Agents.Agents.Image,
			Changed: sets.List(sets.New(is.side.Changes.List...)), Notes: sets.List(sets.New(is.plan.Notes...)),
			Err: kube.ContextError(ctx, is.err),
		}
	}
	return out, nil
}

// PlanUpgrades returns what UpgradeAll would do, and changes nothing.
func PlanUpgrades(ctx context.Context, clusters []*kube.Cluster, o UpgradeOptions, r kube.Reporter) (*plan.Upgrades, error) {
	u, err := planUpgrades(ctx, clusters, o, r, false)
	if err != nil {
		return nil, kube.ContextError(ctx, err)
	}
	return &plan.Upgrades{Clusters: lo.Map(u.all, func(c *upgrade, _ int) *plan.Upgrade { return c.plan })}, nil
}

// planUpgrades reads the clusters, plans, and compares each object with the live one. If toChange, under the locks,
// it reports no progress, and determines which paths pass packets.
func planUpgrades(ctx context.Context, clusters []*kube.Cluster, o UpgradeOptions, r kube.Reporter, toChange bool) (*upgrades, error) {
	out, step := &upgrades{reporter: r}, r.Step
	name := lo.Ternary(len(clusters) > 1, "Reading the clusters", "Reading the cluster")
	if toChange {
		step = kube.Quiet{}.Step
	}
	return out, step(ctx, name, func(ctx context.Context) error {
		facts := make([]*plan.UpgradeFacts, len(clusters))
		err := failure.ForEachLimit(ctx, failure.MaxParallel, clusters, func(ctx context.Context, i int, c *kube.Cluster) (err error) {
			if err := engine.CheckInstallation(ctx, c); err != nil {
				return err
			}
			facts[i], err = upgradeFacts(ctx, c, o)
			return err
		})
		if err != nil {
			return err
		}
		if out.unverified, err = compareIdentities(ctx, clusters, facts); err != nil {
			return err
		}
		made, err := plan.MakeUpgrades(facts)
		if err != nil {
			return err
		}
		out.temporary = made.Temporary
		for i, p := range made.Clusters {
			s := engine.NewSide(clusters[i], i)
			s.Facts, s.Intent, s.Changes.Journal.Created, s.Health.LossTimeout = facts[i].Facts, facts[i].Intent, true, o.lossTimeout
			p.Notes = append(p.Notes, out.unverified...)
			out.all = append(out.all, &upgrade{side: s, plan: p, options: o, reporter: r})
		}
		return failure.ForEach(ctx, out.all, func(ctx context.Context, u *upgrade) error { return u.compare(ctx, toChange) })
	})
}

// compareIdentities compares the identities of those clusters that are peered with each other.
func compareIdentities(ctx context.Context, clusters []*kube.Cluster, facts []*plan.UpgradeFacts) (unverified []string, err error) {
	for i, a := range clusters {
		for _, b := range clusters[i+1:] {
			if !slices.ContainsFunc(facts[i].Facts.OtherPeerings, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == b.ID }) {
				continue
			}
			unknown, err := identity.Compare(ctx, a, b)
			if err != nil {
				return nil, err
			}
			unverified = append(unverified, unknown...)
		}
	}
	return unverified, nil
}

// upgradeFacts reads the current state of the cluster's agents.
func upgradeFacts(ctx context.Context, c *kube.Cluster, o UpgradeOptions) (*plan.UpgradeFacts, error) {
	f := &plan.UpgradeFacts{Secrets: map[string]bool{}}
	f.Facts.Network.Name, f.Facts.Network.ClusterID = c.Name, c.ID
	f.Intent = plan.Intent{Version: c.Version, DefaultImage: c.DefaultImage, Overrides: plan.Overrides{Image: o.Image}, Upgrade: true}
	ds, err := c.ReadNodeAgents(ctx)
	if ds == nil || err != nil {
		return f, err
	}
	// Agents without a ledger wait for it: a command that installs them has not got that far, or was killed.
	if f.Facts.Ledger, err = c.ReadLedger(ctx); f.Facts.Ledger == nil || err != nil {
		return f, err
	}
	f.Facts = f.Facts.WithNodeAgents(ds)
	if f.Facts.Network.Nodes, err = engine.AgentNodes(ctx, c); err != nil {
		return nil, err
	}
	var peerings v1alpha1.PeeringList
	var services corev1.ServiceList
	secrets := kube.SecretMetadataList()
	for _, list := range []client.ObjectList{&peerings, &services, secrets} {
		err := c.List(ctx, list, kube.InOurNamespace)
		if list == secrets && apierrors.IsForbidden(err) {
			f.Secrets, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	f.Facts.OtherPeerings = peerings.Items
	if slices.ContainsFunc(peerings.Items, func(p v1alpha1.Peering) bool { return p.Spec.Services != nil }) {
		if f.Facts.Services, err = engine.ReadServices(ctx, c); err != nil {
			return nil, err
		}
	}
	f.Services = lo.KeyBy(kube.Pointers(services.Items), func(s *corev1.Service) string { return s.Labels[v1alpha1.LabelPeering] })
	for _, s := range secrets.Items {
		f.Secrets[s.Name] = true // empty if they may not be listed
	}
	return f, nil
}

// compare compares the plan with the live objects, including changes by others, and records which paths pass packets.
func (u *upgrade) compare(ctx context.Context, toChange bool) error {
	g, gctx := failure.NewGroup(ctx)
	g.Go(func() error { return compareObjects(gctx, u.side, u.plan.Objects, true) })
	missing := ""
	if toChange {
		g.Go(func() (err error) {
			atMost := cmp.Or(u.options.lossTimeout, engine.BaselineTimeout)
			u.side.Health.Baseline, missing, err = engine.BaselinePaths(gctx, u.side.Cluster, atMost)
			return err
		})
	}
	err := g.Wait()
	if missing != "" {
		u.plan.Notes = append(u.plan.Notes, fmt.Sprintf("%s: before anything was changed, %s", u.side.Name, missing))
	}
	u.plan.Notes = append(u.plan.Notes, u.side.Changes.Conflicts.Notes(u.side.Name)...)
	return err
}

// run runs all steps.
func (u *upgrades) run(ctx context.Context) {
	for _, c := range u.all {
		if c.isDone() {
			c.err = c.side.AwaitHealthy(ctx, engine.AgentSet{Gateways: c.permanentGateways()}, 0)
		}
	}
	u.forEachHealthy(ctx, (*upgrade).prepare)
	u.forEachHealthy(ctx, func(c *upgrade, ctx context.Context) error { return c.replaceGateways(ctx, true) })
	u.forEachHealthy(ctx, (*upgrade).replaceNodes)
	temporary := u.addTemporary(ctx)
	u.forEachHealthy(ctx, func(c *upgrade, ctx context.Context) error { return c.replaceGateways(ctx, false) })
	u.removeTemporary(ctx, temporary)
	u.forEachHealthy(ctx, (*upgrade).finish)
	for _, c := range u.all {
		if c.err == nil && !c.isDone() && ctx.Err() != nil {
			c.err = c.interrupted(ctx)
		}
	}
}

// forEachHealthy runs fn for each cluster that has not failed, in sequence. A cluster in which it fails is rolled back.
func (u *upgrades) forEachHealthy(ctx context.Context, fn func(*upgrade, context.Context) error) {
	for _, c := range u.all {
		if c.err == nil && !c.isDone() && ctx.Err() == nil {
			c.fail(ctx, failure.RecoverPanic(func() error { return fn(c, ctx) }))
		}
	}
}

// prepare applies what new agents need: definitions and permissions.
func (u *upgrade) prepare(ctx context.Context) error {
	return u.step(ctx, "definitions and permissions", func(ctx context.Context) error {
		if err := u.side.InstallCRDs(ctx, u.plan.Objects); err != nil {
			return err
		}
		return failure.RunSteps(ctx,
			func(ctx context.Context) error {
				return u.side.Apply(ctx, plan.ObjectsInStage(u.plan.Objects, plan.Accounts, "")...)
			},
			func(ctx context.Context) error { return u.side.InstallServices(ctx, u.plan.Objects) },
			func(ctx context.Context) error { return u.side.AwaitServices(ctx, u.plan.Objects) })
	})
}

// replaceGateways replaces outdated gateways, one plane after the other: all, or only those that an interrupted
// command left without a pod.
func (u *upgrade) replaceGateways(ctx context.Context, stopped bool) error {
	for _, group := range u.plan.Gateways {
		var changed []gatewayChange
		for _, g := range group {
			p, err := kube.Get[v1alpha1.Peering](ctx, u.side.Cluster, "", g.Peering)
			if err != nil {
				return err
			}
			if p != nil && p.Plane(g.Plane) != nil { // a temporary plane may have brought other keys, after an interrupted command
				g.KeyGeneration, g.PresharedKey = max(1, p.Plane(g.Plane).KeyGeneration), p.Plane(g.Plane).PresharedKey.Generation
			}
			account, deployment := g.Objects()
			want, live, err := u.side.Desired(ctx, deployment)
			if err != nil {
				return err
			}
			if p == nil || stopped && !engine.IsStopped(live) {
				continue
			}
			if err := u.side.Apply(ctx, account...); err != nil {
				return err
			}
			if engine.IsStopped(live) {
				u.side.Health.Baseline.ExpectGateway(g)
			}
			if !kube.Contains(live.Object, want.Object) {
				changed = append(changed, gatewayChange{g, want})
			}
		}
		if len(changed) == 0 {
			continue
		}
		peerings := lo.Map(changed, func(g gatewayChange, _ int) string { return g.Peering })
		name := fmt.Sprintf("gateways of plane %d (%s)", changed[0].Plane, kube.JoinFirst(3, peerings))
		if err := u.step(ctx, name, func(ctx context.Context) error { return u.replaceGroup(ctx, changed) }); err != nil {
			return err
		}
	}
	return nil
}

// gatewayChange is a gateway to be replaced, and its next Deployment.
type gatewayChange struct {
	plan.UpgradeGateway
	next *unstructured.Unstructured
}

// replaceGroup replaces gateways in parallel, and waits until packets pass through them.
func (u *upgrade) replaceGroup(ctx context.Context, group []gatewayChange) error {
	err := failure.ForEachLimit(ctx, len(group), group, func(ctx context.Context, _ int, g gatewayChange) error {
		return u.side.ReplaceGateway(ctx, g.Gateway, g.next, g.NoRedundancy)
	})
	if err != nil {
		return err
	}
	gateways := lo.Map(group, func(g gatewayChange, _ int) manifests.Gateway { return g.Gateway })
	return u.awaitGateways(ctx, engine.AgentSet{Nodes: engine.NoNodes(), Gateways: gateways})
}

// awaitGateways waits as long as nodes may take to notice that a replaced gateway does not work.
func (u *upgrade) awaitGateways(ctx context.Context, a engine.AgentSet) error {
	return u.side.AwaitHealthy(ctx, a, cmp.Or(u.options.soak, engine.ProbeExpiry))
}

// permanentGateways returns the gateways except temporary ones, which may be gone by now.
func (u *upgrade) permanentGateways() []manifests.Gateway {
	return lo.FilterMap(slices.Concat(u.plan.Gateways...), func(g plan.UpgradeGateway, _ int) (manifests.Gateway, bool) {
		return g.Gateway, !g.Temporary
	})
}

// replaceNodes replaces the agents of nodes.
func (u *upgrade) replaceNodes(ctx context.Context) error {
	if err := u.side.RollOut(ctx, u.plan.Agents, u.step); err != nil {
		return err
	}
	return u.side.AwaitHealthy(ctx, engine.AgentSet{}, 0)
}

// addTemporary adds a temporary plane to peerings with one plane, if anything changes. It returns the runs that do it.
func (u *upgrades) addTemporary(ctx context.Context) (out []*run) {
	for _, pair := range u.temporary {
		a, b := u.all[pair[0]], u.all[pair[1]]
		if ctx.Err() != nil || a.isDone() && b.isDone() {
			continue
		}
		err := cmp.Or(a.err, b.err)
		if err != nil {
			err = fmt.Errorf("the peering of %s and %s has one plane, and gets another one only if both are upgraded: %w", a.side.Name, b.side.Name, err)
		} else {
			p := newRun(a.side.Cluster, b.side.Cluster, engine.Options{KeepOverlayKey: true}, u.reporter)
			p.skipsNodeAgents = true
			out = append(out, p)
			name := fmt.Sprintf("%s and %s: a temporary plane", a.side.Name, b.side.Name)
			err = u.reporter.Step(ctx, name, func(ctx context.Context) error {
				return failure.RunSteps(ctx, p.requireIdentities, p.observe, p.addTemporary)
			})
		}
		for _, c := range []*upgrade{a, b} {
			if c.err == nil && !errors.Is(err, kube.ErrUnpeered) { // the other peerings continue
				c.fail(ctx, err)
			}
		}
	}
	return out
}

// removeTemporary removes the temporary planes, even after a failure. If the command is interrupted, the next one
// removes them.
func (u *upgrades) removeTemporary(ctx context.Context, all []*run) {
	for _, p := range all {
		if p.plan == nil || isInterrupted(ctx) {
			continue
		}
		ctx, cancel := kube.WithRollbackTimeout(ctx)
		name := fmt.Sprintf("%s and %s: removing the temporary plane", p.sides[0].Name, p.sides[1].Name)
		err := u.reporter.Step(ctx, name, p.removeTemporary)
		cancel()
		for _, s := range p.sides {
			c, _ := lo.Find(u.all, func(c *upgrade) bool { return c.side.ID == s.ID })
			c.side.Changes.List = append(c.side.Changes.List, s.Changes.List...)
			if c.err == nil && err != nil && !errors.Is(err, kube.ErrUnpeered) {
				c.err = err // the upgrade itself is done
			}
		}
	}
}

// finish applies what depends on all agents.
func (u *upgrade) finish(ctx context.Context) error {
	return u.step(ctx, "checking all agents", func(ctx context.Context) error {
		if err := u.side.Apply(ctx, plan.ObjectsInStage(u.plan.Objects, plan.Exposure, "")...); err != nil {
			return err
		}
		for _, p := range u.plan.Peerings {
			if err := u.finishPeering(ctx, p.Name); err != nil {
				return err
			}
		}
		return u.side.AwaitHealthy(ctx, engine.AgentSet{Gateways: u.permanentGateways()}, 0)
	})
}

// finishPeering writes a Peering as this version does, and keeps concurrent changes.
func (u *upgrade) finishPeering(ctx context.Context, name string) error {
	return kube.RetryOnConflict(func() error {
		now, err := kube.Get[v1alpha1.Peering](ctx, u.side.Cluster, "", name)
		if now == nil || err != nil {
			return err
		}
		want := manifests.Peering(name, *now.Spec.DeepCopy())
		want.ResourceVersion, want.UID = now.ResourceVersion, now.UID
		return u.side.Apply(ctx, want)
	})
}

// fail records an error, and rolls back the cluster. After an interruption it does not: packets pass, and the next
// command continues from there.
func (u *upgrade) fail(ctx context.Context, err error) {
	if u.err = err; err == nil || lock.Lost(ctx) != nil {
		return
	}
	if isInterrupted(ctx) {
		u.err = u.interrupted(ctx)
		return
	}
	back, cancel := u.side.Isolated(ctx, upgradeRollbackTimeout)
	defer cancel()
	if undone := u.step(back, "rolling back to "+u.plan.From, func(ctx context.Context) error {
		if err := u.side.RollBack(ctx, u.side.Changes.Journal.Changes, u.awaitGateways); err != nil {
			return err
		}
		return u.side.AwaitHealthy(ctx, engine.AgentSet{}, 0)
	}); undone != nil {
		u.err = errors.Join(err, fmt.Errorf("the rollback is incomplete: %w; see kubectl liqonet status %s, and run the command again", undone, failure.Quote(u.side.Name)))
	}
}

// isInterrupted reports whether the user has interrupted the command. A timeout is a failure instead.
func isInterrupted(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// interrupted returns the error of an interrupted command.
func (u *upgrade) interrupted(ctx context.Context) error {
	return u.side.Errorf(kube.NotReady, "upgrade", "run the command again: it continues from here", "%w", context.Cause(ctx))
}

func (u *upgrade) step(ctx context.Context, name string, fn func(context.Context) error) error {
	return u.reporter.Step(ctx, u.side.Name+": "+name, fn)
}

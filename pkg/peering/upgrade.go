package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// upgradeBackTimeout is how long it may take to go back, beyond the command's own timeout: gateways go back as they came, one
// plane after the other.
const upgradeBackTimeout = 5 * time.Minute

// UpgradeOptions say how clusters are upgraded.
type UpgradeOptions struct {
	// Image of the agents, which is of this command's version; empty to decide.
	Image string
	// calm is how long packets have to pass by gateways that were replaced, and patience how long they may not: 0 for
	// probeSilence and lostTimeout.
	calm, patience time.Duration
}

// Upgraded is what was done in one cluster.
type Upgraded struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	// From and To are the versions of the agents, Image what they run now.
	From  string `json:"from"`
	To    string `json:"to"`
	Image string `json:"image"`
	// Changed lists what was changed, as "cluster: object".
	Changed []string `json:"changed"`
	// Notes are what the user has to know.
	Notes []string `json:"notes,omitempty"`
	// Err is why the cluster's agents are not of the version.
	Err error `json:"-"`
}

// upgrade is one cluster during the command.
type upgrade struct {
	*side
	*plan.Upgrade
	options  UpgradeOptions
	reporter Reporter
	// worked are the ways by which packets passed before anything was changed.
	worked ways
	// others are the fields that somebody else has changed.
	others others
	// replaced are the gateways that were replaced, in groups.
	replaced [][]plan.UpgradeGateway
	// done says that there was nothing to do.
	done bool
	err  error
}

// UpgradeAll brings the agents of clusters to this command's version, while packets pass: those of nodes and gateways step by step. Probes are
// looked at after each step. If packets are lost, what was changed in that cluster goes back, and the others go on. Only these clusters are
// touched. A command that was interrupted is done again.
//
// The error is about all clusters. What is in Upgraded is about one.
func UpgradeAll(ctx context.Context, clusters []*Cluster, o UpgradeOptions, r Reporter) ([]Upgraded, error) {
	// What is refused leaves no trace, not even that of a lock.
	u, err := readUpgrades(ctx, clusters, o, r)
	if err == nil {
		g, gctx := failure.NewGroup(ctx)
		var all []lock.Cluster
		for _, c := range clusters {
			g.Go(func() error { return c.checkPermissions(gctx, toInstall()) })
			one := c.lock("")
			one.Exclusive = true
			all = append(all, one)
		}
		if err = g.Wait(); err == nil {
			err = underLocks(ctx, "upgrade", r.Step, all, func(ctx context.Context) (err error) {
				if u, err = planUpgrades(ctx, clusters, o, r, true); err != nil {
					return err
				}
				u.run(ctx)
				return lock.Lost(ctx)
			})
		}
	}
	if err != nil {
		return nil, ended(ctx, err)
	}
	out := make([]Upgraded, len(clusters))
	for i, c := range clusters {
		is := u.of(c.ID)
		c.retireIfPossible(ctx)
		out[i] = Upgraded{
			Cluster: c.Name, ClusterID: c.ID, From: is.From, To: is.To, Image: is.Agents.Image,
			Changed: sets.List(sets.New(is.changed...)), Notes: sets.List(sets.New(is.Notes...)), Err: ended(ctx, is.err),
		}
	}
	return out, nil
}

// PlanUpgrades returns what UpgradeAll would do, and changes nothing.
func PlanUpgrades(ctx context.Context, clusters []*Cluster, o UpgradeOptions, r Reporter) (*plan.Upgrades, error) {
	u, err := readUpgrades(ctx, clusters, o, r)
	if err != nil {
		return nil, ended(ctx, err)
	}
	out := &plan.Upgrades{}
	for _, c := range u.all {
		out.Clusters = append(out.Clusters, c.Upgrade)
	}
	return out, nil
}

// readUpgrades reads the clusters, plans, and compares each object with what is there.
func readUpgrades(ctx context.Context, clusters []*Cluster, o UpgradeOptions, r Reporter) (u *upgrades, err error) {
	step := "Reading the cluster"
	if len(clusters) > 1 {
		step = "Reading the clusters"
	}
	err = r.Step(ctx, step, func(ctx context.Context) error {
		u, err = planUpgrades(ctx, clusters, o, r, false)
		return err
	})
	return u, err
}

// planUpgrades does so without a word. If the clusters are going to be changed, it looks by which ways packets pass.
func planUpgrades(ctx context.Context, clusters []*Cluster, o UpgradeOptions, r Reporter, toChange bool) (*upgrades, error) {
	out := &upgrades{reporter: r}
	facts := make([]*plan.UpgradeFacts, len(clusters))
	g, gctx := failure.NewGroup(ctx)
	for i, c := range clusters {
		g.Go(func() (err error) {
			if err := c.checkVersion(gctx); err != nil {
				return err
			}
			facts[i], err = c.upgradeFacts(gctx, o)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	made, err := plan.MakeUpgrades(facts)
	if err != nil {
		return nil, err
	}
	out.temporary = made.Temporary
	g, gctx = failure.NewGroup(ctx)
	for i, p := range made.Clusters {
		of := slices.IndexFunc(clusters, func(c *Cluster) bool { return c.ID == p.ClusterID })
		c := clusters[of]
		u := &upgrade{side: newSide(c, i), Upgrade: p, options: o, reporter: r}
		u.journal.created = true
		out.all = append(out.all, u)
		g.Go(func() error { return u.look(gctx, toChange) })
	}
	return out, g.Wait()
}

// upgradeFacts reads what there is of the cluster's agents.
func (c *Cluster) upgradeFacts(ctx context.Context, o UpgradeOptions) (*plan.UpgradeFacts, error) {
	f := &plan.UpgradeFacts{
		Name: c.Name, ClusterID: c.ID, Image: o.Image, Command: manifests.Agents{Image: c.DefaultImage, Version: c.Version},
		Services: map[string]*corev1.Service{}, Secrets: map[string]bool{},
	}
	ds, err := c.nodeAgents(ctx)
	if ds == nil || err != nil {
		return f, err
	}
	f.Installed, f.NodeMetrics, f.OverlayKeys = manifests.AgentsOf(ds, &ds.Spec.Template.Spec), manifests.ShowsNodeMetrics(ds), manifests.OverlayKeys(&ds.Spec.Template.Spec)
	if f.Ledger, err = c.ledger(ctx); err != nil {
		return nil, err
	}
	var peerings v1alpha1.PeeringList
	var services corev1.ServiceList
	var nodes corev1.NodeList
	secrets := secretNames().(*metav1.PartialObjectMetadataList)
	for _, list := range []client.ObjectList{&peerings, &services, &nodes, secrets} {
		err := c.list(ctx, list, inOurNamespace(list))
		if list == secrets && apierrors.IsForbidden(err) {
			f.Secrets, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	f.Peerings = peerings.Items
	f.Nodes, f.NotReady = nodesByReadiness(pointers(nodes.Items))
	for i := range services.Items {
		s := &services.Items[i]
		f.Services[s.Labels[v1alpha1.LabelPeering]] = s
	}
	for _, s := range secrets.Items {
		f.Secrets[s.Name] = true // there are none where they may not be listed
	}
	return f, nil
}

// look compares the plan with what is there, and notes by which ways packets pass.
func (u *upgrade) look(ctx context.Context, toChange bool) error {
	g, gctx := failure.NewGroup(ctx)
	g.SetLimit(8)
	for i := range u.Objects {
		o := &u.Objects[i]
		g.Go(func() error { return u.compare(gctx, o) })
	}
	missing := ""
	if toChange {
		g.Go(func() (err error) {
			u.worked, missing, err = u.waysBefore(gctx, cmp.Or(u.options.patience, beginTimeout))
			return err
		})
	}
	err := g.Wait()
	if missing != "" {
		u.Notes = append(u.Notes, fmt.Sprintf("%s: before anything was changed, %s", u.Name, missing))
	}
	u.Notes = append(u.Notes, u.others.notes(u.Name)...)
	return err
}

// compare says what is to be done with an object, and which of its fields somebody else has changed.
func (u *upgrade) compare(ctx context.Context, o *plan.ObjectPlan) error {
	obj := &unstructured.Unstructured{Object: o.Manifest}
	action, err := u.action(ctx, o)
	if o.Action = action; err != nil || action != plan.Change {
		return err
	}
	_, live, err := u.read(ctx, obj)
	if err != nil {
		return err
	}
	return u.askOthers(ctx, obj, live)
}

// upgrades are the clusters of one command.
type upgrades struct {
	all []*upgrade
	// temporary are the IDs of clusters of peerings, as in the plan.
	temporary [][2]string
	reporter  Reporter
}

func (u *upgrades) of(id string) *upgrade {
	return u.all[slices.IndexFunc(u.all, func(u *upgrade) bool { return u.ID == id })]
}

// each does something in all clusters, one after the other, but those in which something has failed: what was changed in these goes
// back.
func (u *upgrades) each(ctx context.Context, do func(*upgrade, context.Context) error) {
	for _, c := range u.all {
		if c.err == nil && !c.done && ctx.Err() == nil {
			c.failed(ctx, failure.Caught(func() error { return do(c, ctx) }))
		}
	}
}

// run does all steps.
func (u *upgrades) run(ctx context.Context) {
	for _, c := range u.all {
		if c.Changes() == 0 {
			c.done = true
			c.err = c.settle(ctx, slices.Concat(c.Nodes...), c.lasting(), 0)
		}
	}
	u.each(ctx, (*upgrade).prepare)
	u.each(ctx, (*upgrade).resume)
	u.each(ctx, (*upgrade).replaceNodes)
	temporary := u.addTemporary(ctx)
	u.each(ctx, (*upgrade).replaceGateways)
	u.removeTemporary(ctx, temporary)
	u.each(ctx, (*upgrade).finish)
	for _, c := range u.all {
		if c.err == nil && !c.done && ctx.Err() != nil {
			c.err = c.interrupted(ctx)
		}
	}
}

func (u *upgrade) step(ctx context.Context, name string, do func(context.Context) error) error {
	return u.reporter.Step(ctx, u.Name+": "+name, do)
}

// isInterrupted says that somebody has ended the command. Time that is over is a failure.
func isInterrupted(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// interrupted says how to go on.
func (u *upgrade) interrupted(ctx context.Context) error {
	return &Error{Kind: NotReady, Cluster: u.Name, Doing: "upgrade", Err: context.Cause(ctx), Hint: "run the command again: it goes on from here"}
}

// failed notes an error, and has what was changed in the cluster go back. A command that somebody has interrupted leaves it: packets
// pass, and the next one goes on from there.
func (u *upgrade) failed(ctx context.Context, err error) {
	if u.err = err; err == nil || lock.Lost(ctx) != nil {
		return
	}
	if isInterrupted(ctx) {
		u.err = u.interrupted(ctx)
		return
	}
	back, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), upgradeBackTimeout, fmt.Errorf("not done after %s", upgradeBackTimeout))
	defer cancel()
	if undone := u.step(back, "going back to "+u.From, u.goBack); undone != nil {
		u.err = errors.Join(err, fmt.Errorf("not all went back: %w; see kubectl liqonet status %s, and run the command again", undone, u.Name))
	}
}

// prepare applies what has to be there before new agents are: definitions and permissions.
func (u *upgrade) prepare(ctx context.Context) error {
	return u.step(ctx, "definitions and permissions", func(ctx context.Context) error {
		if err := u.installCRDs(ctx, u.Objects); err != nil {
			return err
		}
		return u.apply(ctx, plan.Staged(u.Objects, plan.Accounts, "")...)
	})
}

// applyWorkload applies what runs agents, with what others have changed and is kept.
func (u *upgrade) applyWorkload(ctx context.Context, obj manifests.Object) error {
	m, err := manifests.ToApply(obj)
	if err != nil {
		return err
	}
	u.others.keep(m)
	return u.apply(ctx, m)
}

// replaceNodes replaces the agents of nodes. Their DaemonSet replaces none by itself meanwhile, also if this command is killed.
func (u *upgrade) replaceNodes(ctx context.Context) error {
	want, live, err := u.read(ctx, u.DaemonSet)
	if err != nil {
		return err
	}
	u.others.keep(want)
	if !contains(live.Object, want.Object) {
		byHand := u.DaemonSet.DeepCopy()
		byHand.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
		if err := u.applyWorkload(ctx, byHand); err != nil {
			return err
		}
		done := 0
		for _, group := range u.Nodes {
			done += len(group)
			name := fmt.Sprintf("node agents, %d of %d (%s)", done, len(slices.Concat(u.Nodes...)), firstOf(3, group))
			if err := u.step(ctx, name, func(ctx context.Context) error { return u.settle(ctx, group, nil, 0) }); err != nil {
				return err
			}
		}
	}
	if err := u.applyWorkload(ctx, u.DaemonSet); err != nil {
		return err
	}
	return u.settle(ctx, slices.Concat(u.Nodes...), nil, 0)
}

// resume has gateways run that a command which was interrupted has left without a pod.
func (u *upgrade) resume(ctx context.Context) error {
	var stopped []plan.UpgradeGateway
	for _, g := range slices.Concat(u.Gateways...) {
		d, err := get[appsv1.Deployment](ctx, u.side.Cluster, v1alpha1.Namespace, g.Name())
		if err != nil {
			return err
		}
		if d != nil && d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
			stopped = append(stopped, g)
			u.worked.expect(g)
		}
	}
	if len(stopped) == 0 {
		return nil
	}
	return u.step(ctx, "gateways that an interrupted command has stopped", func(ctx context.Context) error {
		for _, g := range stopped {
			account, deployment := g.Objects()
			if err := cmp.Or(u.apply(ctx, account...), u.applyWorkload(ctx, deployment)); err != nil {
				return err
			}
		}
		return u.settle(ctx, nil, stopped, cmp.Or(u.options.calm, probeSilence))
	})
}

// replaceGateways replaces the gateways, plane by plane.
func (u *upgrade) replaceGateways(ctx context.Context) error {
	for _, group := range u.Gateways {
		var peerings v1alpha1.PeeringList
		if err := u.list(ctx, &peerings); err != nil {
			return err
		}
		var changed []plan.UpgradeGateway
		for _, g := range stillPeered(group, pointers(peerings.Items)) {
			account, deployment := g.Objects()
			if err := u.apply(ctx, account...); err != nil {
				return err
			}
			want, live, err := u.read(ctx, deployment)
			if err != nil {
				return err
			}
			if u.others.keep(want); !contains(live.Object, want.Object) {
				changed = append(changed, g)
			}
		}
		if len(changed) == 0 {
			continue
		}
		var names []string
		for _, g := range changed {
			names = append(names, g.Peering)
		}
		name := fmt.Sprintf("gateways of plane %d (%s)", changed[0].Plane, firstOf(3, names))
		err := u.step(ctx, name, func(ctx context.Context) error {
			u.replaced = append(u.replaced, changed)
			return u.replaceGroup(ctx, changed, func(g plan.UpgradeGateway) (*unstructured.Unstructured, error) {
				_, deployment := g.Objects()
				want, err := manifests.ToApply(deployment)
				if err == nil {
					u.others.keep(want)
				}
				return want, err
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// replaceGroup replaces gateways by those that are wanted, and waits until packets pass by them. Two gateways with one key would take
// each other's packets, and one that starts waits only some seconds for the former one. So it does not start before that one
// has ended. Where packets have no other way, there is no time for that.
func (u *upgrade) replaceGroup(ctx context.Context, group []plan.UpgradeGateway, want func(plan.UpgradeGateway) (*unstructured.Unstructured, error)) error {
	g, gctx := failure.NewGroup(ctx)
	for _, gateway := range group {
		g.Go(func() error {
			next, err := want(gateway)
			switch {
			case err != nil, next == nil: // it was not replaced
				return err
			case gateway.Alone:
				return u.apply(gctx, next)
			}
			none := next.DeepCopy()
			if err := unstructured.SetNestedField(none.Object, int64(0), "spec", "replicas"); err != nil {
				return err
			}
			if err := u.apply(gctx, none); err != nil {
				return err
			}
			ended := u.awaitEnd(gctx, gateway.Gateway)
			if ended != nil { // whatever it waits for: one has to run again
				var cancel context.CancelFunc
				gctx, cancel = withTime(gctx)
				defer cancel()
			}
			return cmp.Or(ended, u.apply(gctx, next))
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return u.settle(ctx, nil, group, cmp.Or(u.options.calm, probeSilence))
}

// lasting are the gateways but temporary ones, which may be gone by now.
func (u *upgrade) lasting() []plan.UpgradeGateway {
	return slices.DeleteFunc(slices.Concat(u.Gateways...), func(g plan.UpgradeGateway) bool { return g.Temporary })
}

// finish applies what depends on all agents.
func (u *upgrade) finish(ctx context.Context) error {
	return u.step(ctx, "looking at all agents", u.finishAll)
}

func (u *upgrade) finishAll(ctx context.Context) error {
	if err := u.apply(ctx, plan.Staged(u.Objects, plan.Exposure, "")...); err != nil {
		return err
	}
	for _, p := range u.Peerings {
		if err := u.finishPeering(ctx, p.Name); err != nil {
			return err
		}
	}
	return u.settle(ctx, slices.Concat(u.Nodes...), u.lasting(), 0)
}

// finishPeering writes a Peering as this version does. What somebody else has changed since it was read stays.
func (u *upgrade) finishPeering(ctx context.Context, name string) error {
	return retryOnConflict(func() error {
		now, err := get[v1alpha1.Peering](ctx, u.side.Cluster, "", name)
		if now == nil || err != nil {
			return err
		}
		want := manifests.Peering(name, *now.Spec.DeepCopy())
		want.ResourceVersion, want.UID = now.ResourceVersion, now.UID
		return u.apply(ctx, want)
	})
}

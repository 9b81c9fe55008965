package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/version"
)

// InstallCRDs applies the custom resource definitions and waits until they are served, about a second after they are
// established.
func (s *Side) InstallCRDs(ctx context.Context, planned []plan.ObjectPlan) error {
	if err := s.Apply(ctx, plan.ObjectsInStage(planned, plan.CRDs, "")...); err != nil {
		return err
	}
	return s.Await(ctx, "wait for the custom resource definitions", "", nil, func(kube.Objects) (string, error) {
		lists := []client.ObjectList{&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}}
		if len(plan.ObjectsInStage(planned, plan.ServicesWorkload, "")) > 0 {
			lists = append(lists, &v1alpha1.ExportedServiceList{}, &v1alpha1.ReceivedServiceList{}, &mcs.ServiceExportList{}, &mcs.ServiceImportList{})
		}
		for _, list := range lists {
			if err := s.Client.List(ctx, list, client.Limit(1)); kube.IsNotFound(err) {
				return fmt.Sprintf("%T is not served yet", list), nil
			} else if err != nil {
				return "", err
			}
		}
		return "", nil
	})
}

// Install reserves the ledger entry and applies the objects of the node agents. Without existing agents it does both
// in parallel, as the API server takes a second to serve the ledger. Otherwise other peerings depend on the agents,
// so the journal comes first.
func (s *Side) Install(ctx context.Context, peer *kube.Cluster, planned *plan.ClusterPlan) error {
	var entry v1alpha1.PeerAllocation
	key := planned.Ledger.Spec.OverlayKey
	generation := key.Generation
	g, gctx := failure.NewGroup(ctx)
	g.Go(func() (err error) {
		if err := s.InstallCRDs(gctx, planned.Objects); err != nil {
			return err
		}
		cn, changed, err := ensureAllocation(gctx, s.Cluster, peer, planned.Ledger.Spec)
		if err != nil {
			return err
		}
		entry, generation = *plan.Allocation(cn, peer.ID), plan.OverlayKey(cn)
		if changed {
			s.RecordChange("the ledger")
		}
		return nil
	})
	// No agent gets a new key before the ledger records which nodes know the previous one.
	early := s.Facts.Installed.Image == "" && key.Generation == plan.OverlayKey(s.Facts.Ledger)
	if early {
		g.Go(func() error { return s.applyAgents(gctx, &planned.NodeAgents, key.Generation) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if !early { // the journal needs our namespace, which may be gone
		if err := s.ApplyNamespace(ctx); err != nil {
			return err
		}
	}
	s.Changes.Journal.Created = entry.Active()
	if err := s.Changes.Journal.start(ctx, s.Cluster, entry.Name); err != nil {
		return err
	}
	if err := s.createPeering(ctx, planned, &entry); err != nil {
		return err
	}
	if !early || generation != key.Generation { // another command may have changed the overlay's key
		if err := s.applyAgents(ctx, &planned.NodeAgents, generation); err != nil {
			return err
		}
	}
	s.Intent.KeepOverlayKey = true
	return s.pruneOverlayKeys(ctx, key, generation)
}

// createPeering creates the Peering if there is none, to be the owner of all other objects. It has no planes yet: agents wait for them.
func (s *Side) createPeering(ctx context.Context, planned *plan.ClusterPlan, entry *v1alpha1.PeerAllocation) error {
	live, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", entry.Name)
	if live != nil || err != nil {
		return err
	}
	p := manifests.Peering(entry.Name, *planned.Peering.Spec.DeepCopy())
	p.Spec.Index, p.Spec.Planes = entry.Index, nil
	p.Spec.Local.Pods, p.Spec.Remote.Pods = lo.CoalesceSliceOrEmpty(p.Spec.Local.Pods), lo.CoalesceSliceOrEmpty(p.Spec.Remote.Pods)
	if err := s.Apply(ctx, p); err != nil {
		return err
	}
	p.Spec.Planes = planned.Peering.Spec.Planes
	return WritePending(ctx, s.Cluster, p)
}

// applyAgents applies the objects of the node agents. Namespace and account come first: without them, the controller
// fails to create pods and backs off. The agents get the planned overlay keys, from generation least on. If agents
// already run, their DaemonSet is left until the gateways run.
func (s *Side) applyAgents(ctx context.Context, planned *plan.NodeAgents, least int32) error {
	if err := s.ApplyNamespace(ctx); err != nil {
		return err
	}
	account, daemonSet := planned.Objects()
	manifests.RetireOverlayKeys(&daemonSet.Spec.Template.Spec, least)
	g, gctx := failure.NewGroup(ctx)
	g.Go(func() error { return s.Apply(gctx, append(account, manifests.CriticalPodsQuota())...) })
	g.Go(func() error { return s.ensureIdentity(gctx) })
	for _, generation := range manifests.OverlayKeys(&daemonSet.Spec.Template.Spec) {
		g.Go(func() error {
			_, err := s.EnsureOverlayKey(gctx, generation)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return kube.UninstallingIfTerminating(err)
	}
	if err := retireOverlayKeys(ctx, s, least); err != nil {
		return err
	}
	if planned.Ready {
		live, err := s.ReadNodeAgents(ctx) // another command may have removed them
		if live != nil || err != nil {
			return err
		}
	}
	_, err := s.applyNodeAgents(ctx, planned, false)
	return err
}

// currentNodeAgents returns the node agents' DaemonSet as planned. All peerings share it, and other commands may have
// changed it since the plan was made. It keeps the current settings that the user did not choose for this command,
// and the overlay keys that links of any peering use.
func (s *Side) currentNodeAgents(ctx context.Context, planned *plan.NodeAgents) (*appsv1.DaemonSet, error) {
	// Read the DaemonSet first, so that any later change by another command is a conflict.
	live, err := s.ReadNodeAgents(ctx)
	if err != nil {
		return nil, err
	}
	f := s.Facts
	if f.Ledger, err = s.ReadLedger(ctx); err != nil {
		return nil, err
	}
	var peerings v1alpha1.PeeringList
	if err := s.List(ctx, &peerings); err != nil {
		return nil, err
	}
	c := *planned
	f.OtherPeerings = peerings.Items
	if live != nil {
		f = f.WithNodeAgents(live)
		c = c.WithCurrent(f, s.Intent)
	}
	keys := sets.New(c.OverlayKeys...).Insert(plan.LinkKeys(peerings.Items)...)
	c.OverlayKeys = sets.List(keys.Delete(0))
	_, daemonSet := c.Objects()
	// The plan may be older than the key that the ledger requires.
	manifests.RetireOverlayKeys(&daemonSet.Spec.Template.Spec, plan.OverlayKey(f.Ledger))
	if live != nil {
		daemonSet.ResourceVersion, daemonSet.UID = live.ResourceVersion, live.UID
	}
	return daemonSet, nil
}

// applyNodeAgents applies the node agents' DaemonSet with its current settings. With onDelete, pods are replaced only
// when deleted, and isDone means that nothing differs.
func (s *Side) applyNodeAgents(ctx context.Context, planned *plan.NodeAgents, onDelete bool) (isDone bool, err error) {
	err = kube.RetryOnConflict(func() error {
		daemonSet, err := s.currentNodeAgents(ctx, planned)
		if err != nil {
			return err
		}
		want, live, err := s.Desired(ctx, daemonSet)
		if err != nil {
			return err
		}
		isDone = kube.Contains(live.Object, want.Object)
		if onDelete && isDone {
			return nil
		}
		if onDelete {
			strategy := string(appsv1.OnDeleteDaemonSetStrategyType)
			_ = unstructured.SetNestedField(want.Object, strategy, "spec", "updateStrategy", "type") // every DaemonSet has a spec
		}
		return s.Apply(ctx, want)
	})
	return isDone, err
}

// ApplyNamespace applies our namespace, unless someone else created it.
func (s *Side) ApplyNamespace(ctx context.Context) error {
	if err := checkNamespace(ctx, s.Cluster, s.AdoptNamespace); err != nil {
		return err
	}
	return s.Apply(ctx, manifests.Namespace())
}

// AwaitReports waits until the agents of all ready nodes, or of any one, have reported what their kernels support, and
// stores the reports in the facts.
func (s *Side) AwaitReports(ctx context.Context, one bool) (err error) {
	reports := s.Facts.Reports
	defer func() { s.Facts.Reports = reports }()
	doing := "wait for the node agents"
	if one {
		if len(s.Facts.Unreported()) == 0 {
			return nil // the facts have them
		}
		doing = "wait for the first node agent"
	}
	kinds, refusals := append(RolloutKinds(), &corev1.NodeList{}, &v1alpha1.NodeNetworkList{}), &kube.Refusals{}
	return s.Await(ctx, doing, s.PodsHint(), kinds, func(o kube.Objects) (string, error) {
		nodes, _ := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
		reports = o.Reports()
		byNode := plan.ReportsByNode(reports)
		missing := lo.Reject(nodes, func(n string, _ int) bool { return byNode[n] != nil && byNode[n].Status.Kernel != nil })
		if kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName) == nil {
			return "", kube.ErrUnpeered // another command has removed them
		}
		if len(nodes) == 0 {
			return "no node is ready", nil
		}
		if len(missing) == 0 || one && len(missing) < len(nodes) {
			return "", nil
		}
		crash, err := PodProblem(s.Cluster, o, missing)
		err = cmp.Or(err, refusals.Check(ctx, s.Cluster, o))
		return cmp.Or(crash, "no report from "+kube.JoinFirst(5, missing)), err
	})
}

// WritePending writes the initial conditions of a new Peering, with the first gateway as the field manager. That
// gateway removes those that it does not apply, and other gateways take over theirs.
func WritePending(ctx context.Context, c *kube.Cluster, planned *v1alpha1.Peering) error {
	live, err := kube.Get[v1alpha1.Peering](ctx, c, "", planned.Name)
	if live == nil || err != nil || len(live.Status.Conditions)+len(live.Status.Planes) > 0 {
		return err
	}
	raw := lo.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.PeeringStatus{Conditions: planned.PendingConditions()}))
	u := &unstructured.Unstructured{Object: map[string]any{"status": raw}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Peering"))
	u.SetName(live.Name)
	u.SetResourceVersion(live.ResourceVersion) // conflicts if a gateway writes concurrently
	manager := client.FieldOwner(v1alpha1.GatewayManager(planned.Spec.Planes[0].Index))
	return c.Wrap("write the conditions of Peering "+live.Name, c.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), manager, client.ForceOwnership))
}

// RemovePermissions returns the permissions that Unpeer needs. Finalizing the namespace is optional: otherwise Kubernetes does
// it later.
func RemovePermissions() []kube.Permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		kube.Permissions("", "list watch", "nodes nodenetworks.liqonet.io"),
		kube.Permissions("", "get delete", "namespaces"+kube.CRDs),
		kube.Permissions("", "list delete", "peerings.liqonet.io"+kube.CRDs+kube.ClusterRoles+kube.AdmissionPolicies),
		kube.Permissions("", "get create patch update delete", "clusternetworks.liqonet.io"),
		kube.Permissions(metav1.NamespaceSystem, "get list create update patch delete", kube.Leases), // the locks
		kube.Permissions(metav1.NamespaceDefault, "list delete", "events"+kube.Roles),
		kube.Permissions(metav1.NamespaceDefault, "deletecollection", "events"),
		kube.Permissions(ns, "list delete", "configmaps resourcequotas secrets serviceaccounts services"+kube.Roles),
		kube.Permissions(ns, "list delete", "deployments.apps poddisruptionbudgets.policy"),
		kube.Permissions(ns, "list watch delete", "pods daemonsets.apps replicasets.apps"+kube.Leases),
		// To retire overlay keys that only this peering used.
		kube.Permissions(ns, "get patch", "daemonsets.apps"),
		kube.Permissions(ns, "list watch", "controllerrevisions.apps"),
		kube.Permissions(ns, "get create patch", "secrets"),
		kube.Permissions(ns, "get", "configmaps"+kube.Leases),
	)
}

// InstallPermissions returns the permissions that Peer needs, including those to roll back.
func InstallPermissions() []kube.Permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		RemovePermissions(),
		kube.Permissions("", "list", "pods services"),
		kube.Permissions("", "create patch", "namespaces"+kube.CRDs),
		kube.Permissions("", "get create patch", "peerings.liqonet.io"+kube.ClusterRoles+kube.AdmissionPolicies),
		kube.Permissions(metav1.NamespaceDefault, "get create patch", kube.Roles),
		kube.Permissions(ns, "get create patch", "resourcequotas serviceaccounts poddisruptionbudgets.policy"+kube.Roles),
		kube.Permissions(ns, "get watch create patch", "services deployments.apps"),
		kube.Permissions(ns, "create patch", "configmaps"+kube.Leases),
		kube.Permissions(ns, "create", "daemonsets.apps"),
		// Users can only grant the agents permissions that they have themselves.
		kube.Permissions(metav1.NamespaceDefault, "create", "events"),
		kube.Permissions("", "get list watch", "daemonsets.apps"),
		kube.Permissions("", "list watch", "namespaces"),
		kube.Permissions("", "get watch", "nodes pods"),
		kube.Permissions("", "list", "clusternetworks.liqonet.io"),
		kube.Permissions("", "watch", "peerings.liqonet.io"),
		kube.Permissions("", "patch", "peerings/status.liqonet.io nodenetworks/status.liqonet.io"),
		kube.Permissions("", "get watch create patch delete", "nodenetworks.liqonet.io"),
	)
}

// Observe reads everything that a plan needs. It changes nothing, and needs read permissions only.
func (s *Side) Observe(ctx context.Context, peer *kube.Cluster, o Options) (err error) {
	s.AdoptNamespace = o.AdoptNamespace
	f := plan.Facts{Kubeconfig: s.Server}
	defer func() { s.Facts = f }()
	s.Peering.WasActive = false // another command may have unpeered since it was read last
	overrides := o.Facts[s.ID]
	overrides.Name = s.Name
	f.Network, err = discovery.Discover(ctx, s.Client, overrides)
	switch {
	case errors.Is(err, discovery.ErrOutside) && len(overrides.PodCIDRs)+len(overrides.ServiceCIDRs) > 0:
		return &kube.Error{Kind: kube.Usage, Op: "compare the ranges given with what runs", Err: err}
	case errors.Is(err, discovery.ErrUnknown), errors.Is(err, discovery.ErrOutside):
		return &kube.Error{Kind: kube.Ranges, Op: "find out the ranges", Err: err}
	case errors.Is(err, ipam.ErrInvalid):
		return &kube.Error{Kind: kube.Usage, Op: "find out the ranges", Err: err}
	case err != nil:
		return s.Wrap("find out its ranges", err)
	}
	if err := checkNamespace(ctx, s.Cluster, o.AdoptNamespace); err != nil {
		return err
	}
	if f.APIServer, err = APIServerAddresses(ctx, s.Cluster); err != nil {
		return err
	}
	// After the nodes: a node that has left by then knows only keys that this ledger records.
	if f.Ledger, err = s.ReadLedger(ctx); err != nil {
		return err
	}
	if err := ReadAgents(ctx, s.Cluster, &f); err != nil {
		return err
	}
	s.Intent = plan.Intent{
		Version: s.Version, DefaultImage: s.DefaultImage, Overrides: o.For(s.ID),
		KeepOverlayKey: o.KeepOverlayKey && len(f.OverlayKeys) > 0 && f.LostOverlayKey == 0,
	}
	var reports v1alpha1.NodeNetworkList
	var peerings v1alpha1.PeeringList
	if err := s.ListAll(ctx, &reports, &peerings); err != nil {
		return err
	}
	f.Reports = reports.Items
	if s.Intent.Overrides.Services.Exchange == plan.ServicesOn {
		if f.Services, err = ReadServices(ctx, s.Cluster); err != nil {
			return err
		}
	}
	if f.Ledger == nil || !f.Ledger.DeletionTimestamp.IsZero() {
		return nil
	}
	f.OtherPeerings = slices.DeleteFunc(peerings.Items, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peer.ID || p.Incomplete() })
	if entry := plan.Allocation(f.Ledger, peer.ID); entry != nil {
		s.Peering.WasActive = entry.Active()
		if err := ReadPeering(ctx, s.Cluster, entry.Name, &f); err != nil {
			return err
		}
	}
	if f, err = f.InferPods(); err != nil {
		return err
	}
	if lo.FromPtr(f.Existing).Spec.Services != nil && f.Services.Foreign == nil {
		f.Services, err = ReadServices(ctx, s.Cluster)
	}
	return err
}

// ReadAgents reads the current state of the node agents.
func ReadAgents(ctx context.Context, c *kube.Cluster, f *plan.Facts) error {
	ds, err := c.ReadNodeAgents(ctx)
	if err != nil {
		return err
	}
	if ds != nil {
		*f = f.WithNodeAgents(ds)
	} else if gateways, err := c.ListManaged(ctx, nil, &appsv1.DeploymentList{}); err != nil || len(gateways) == 0 {
		return err // there is no key yet
	}
	secrets, err := c.ListManaged(ctx, nil, kube.SecretMetadataList())
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	for _, secret := range secrets {
		f.NewestOverlayKey = max(f.NewestOverlayKey, manifests.OverlayGeneration(secret.GetName()))
	}
	for _, generation := range lo.CoalesceSliceOrEmpty(f.OverlayKeys, []int32{plan.OverlayKey(f.Ledger)}) {
		switch secret, err := KeySecret(ctx, c, manifests.OverlaySecretName(generation), v1alpha1.OverlayKeyFile); {
		case apierrors.IsForbidden(err):
		case err != nil:
			return err
		case secret == nil:
			f.LostOverlayKey = generation
		}
	}
	return nil
}

// ReadPeering reads the current state of the peering.
func ReadPeering(ctx context.Context, c *kube.Cluster, name string, f *plan.Facts) (err error) {
	f.Planes = map[int32]plan.PlaneFacts{}
	if f.Existing, err = kube.Get[v1alpha1.Peering](ctx, c, "", name); err != nil {
		return err
	}
	if f.Owner = ""; f.Existing != nil {
		f.Owner = f.Existing.UID
		if f.Existing.Incomplete() {
			f.Existing = nil // it is written again
		}
	}
	if f.Service, err = kube.Get[corev1.Service](ctx, c, v1alpha1.Namespace, v1alpha1.GatewayServiceName(name)); err != nil {
		return err
	}
	existing := lo.Map(lo.FromPtr(f.Existing).Spec.Planes, func(p v1alpha1.Plane, _ int) int32 { return p.Index }) // with temporary ones
	for _, index := range lo.Union(f.PlaneIndexes(), existing) {
		var plane plan.PlaneFacts
		g := f.Gateway(name, index)
		secret, err := KeySecret(ctx, c, g.SecretName(), v1alpha1.PrivateKeyFile)
		if plane.KeyUnreadable = apierrors.IsForbidden(err); err != nil && !plane.KeyUnreadable {
			return err
		}
		if secret != nil {
			plane.PublicKey, plane.KeyTime = PublicKey(secret), secret.CreationTimestamp
		}
		named, _ := f.ExistingPlane(index)
		if plane.PresharedKey, err = presharedKey(ctx, c, g, named.PresharedKey); err != nil {
			return err
		}
		f.Planes[index] = plane
	}
	return nil
}

// APIServerAddresses returns the API server's addresses, which every node and pod must be able to reach.
func APIServerAddresses(ctx context.Context, c *kube.Cluster) ([]netip.Addr, error) {
	endpoints, err := status.Endpoints(ctx, c, "default", "kubernetes")
	return lo.Map(endpoints, func(e netip.AddrPort, _ int) netip.Addr { return e.Addr() }), kube.IgnoreForbidden(err)
}

// AgentNodes returns all nodes as plans for their agents need them.
func AgentNodes(ctx context.Context, c *kube.Cluster) ([]plan.Node, error) {
	var machines corev1.NodeList
	if err := c.List(ctx, &machines); err != nil {
		return nil, err
	}
	return lo.Map(machines.Items, func(n corev1.Node, _ int) plan.Node {
		return plan.Node{Name: n.Name, Ready: nodes.IsReady(&n), RunsAgents: nodes.RunsAgents(&n)}
	}), nil
}

// CheckInstallation fails if the cluster's objects are a copy of another cluster's: a command that repaired them would start
// agents with keys that are in use elsewhere. It also fails if this command is older than the cluster's agents or
// definitions, as it would drop fields that it does not know. Every command except Unpeer calls it before its first write. A
// version that cannot be compared, such as a commit, is accepted.
func CheckInstallation(ctx context.Context, c *kube.Cluster) error {
	cn, err := c.ReadLedger(ctx)
	if err != nil {
		return err
	}
	if madeFor := v1alpha1.CopiedFrom(lo.FromPtr(cn).Spec.ClusterID, c.ID); madeFor != "" {
		remove := lo.Map(cn.Spec.Peers, func(p v1alpha1.PeerAllocation, _ int) string {
			return fmt.Sprintf("kubectl liqonet unpeer %s --peer %s", failure.Quote(c.Name), failure.Quote(p.Name))
		})
		return c.Errorf(kube.Identity, "compare its ID with that of its liqonet objects",
			"remove the copies, which does not affect the other cluster: "+strings.Join(remove, "; "),
			"the objects were made for another cluster, with the ID %s, as in a restored backup; its agents do nothing", madeFor)
	}
	definition := metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinitionList"}
	versioned, err := c.ListManaged(ctx, nil, &metav1.PartialObjectMetadataList{TypeMeta: definition})
	if err != nil {
		return err
	}
	daemonSet, err := c.ReadNodeAgents(ctx)
	if daemonSet != nil {
		versioned = append(versioned, daemonSet)
	}
	for _, obj := range versioned {
		if there := obj.GetAnnotations()[v1alpha1.AnnotationVersion]; version.Older(c.Version, there) {
			return c.Errorf(kube.Usage, "compare versions", "use the command of that version, or a newer one",
				"liqonet in the cluster has version %s, and this command the older %s", there, c.Version)
		}
	}
	return err
}

// checkNamespace fails if someone else created our namespace. They may have permissions in it, to read the keys or to
// run something in the agents' pods.
func checkNamespace(ctx context.Context, c *kube.Cluster, adopt bool) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || kube.IsManaged(ns) || adopt {
		return err
	}
	hint := fmt.Sprintf("delete it if nobody needs it (%s delete namespace %s); if you trust all who have rights in it, give --adopt-namespace", c.Kubectl, ns.Name)
	return c.Errorf(kube.Usage, "install into namespace "+ns.Name, hint, "it exists and is not managed by liqonet: whoever created it may read the keys in it")
}

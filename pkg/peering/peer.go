package peering

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// rollbackTimeout is the time that taking back may need, beyond the command's
// own timeout.
const rollbackTimeout = 30 * time.Second

// overlayKeyBytes is the length of what the agents ask for (overlay.KeyBytes,
// which is in a package that knows the kernel).
const overlayKeyBytes = 32

// maxEndpoints is what a Peering has room for.
const maxEndpoints = 16

// Result of Peer.
type Result struct {
	// Changed lists what was changed, as "cluster: object". Empty if the clusters
	// were peered already, just so.
	Changed []string
	// Views are both sides', in the order of the arguments.
	Views [2]View
}

// Peer makes the pods of both clusters reach each other. It returns when
// packets pass, from every node that is ready. If it fails, it removes the
// peering again, unless that had worked before.
func Peer(ctx context.Context, a, b *Cluster, o Options, r Reporter) (Result, error) {
	if a.ID == b.ID {
		return Result{}, sameCluster(a, b)
	}
	p := &peer{sides: [2]*side{{Cluster: a}, {Cluster: b}}, options: o, reporter: r}
	err := ended(ctx, p.run(ctx))
	if err == nil || !p.touched || p.sides[0].wasEstablished || p.sides[1].wasEstablished {
		return p.result, err
	}
	undo, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), rollbackTimeout, fmt.Errorf("not done after %s", rollbackTimeout))
	defer cancel()
	if _, _, undoErr := Unpeer(undo, a, b, r); undoErr != nil {
		return p.result, errors.Join(err, fmt.Errorf("what was done could not be taken back: %w; run: kubectl liqonet unpeer %s %s", undoErr, a.Name, b.Name))
	}
	return p.result, err
}

type peer struct {
	sides    [2]*side
	options  Options
	reporter Reporter
	// touched says that something may have been changed.
	touched bool
	result  Result
}

func (p *peer) run(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"Reading both clusters", p.discover},
		{"Installing the node agents", p.install},
		{"Pushing ranges, keys and gateways", p.push},
		{"Waiting until packets pass", p.wait},
	} {
		if err := p.reporter.Step(ctx, step.name, step.do); err != nil {
			return err
		}
	}
	return nil
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

func (p *peer) discover(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, _ *side) ([]string, error) {
		if err := s.may(ctx, toInstall()); err != nil {
			return nil, err
		}
		overrides := p.options.Facts[s.ID]
		overrides.Name = s.Name
		facts, err := discovery.Discover(ctx, s.Client, overrides)
		if errors.Is(err, discovery.ErrUnknown) || errors.Is(err, discovery.ErrOutside) {
			return nil, &Error{Kind: Ranges, Doing: "find out the ranges", Err: err}
		}
		if err != nil {
			return nil, s.fail("find out its ranges", err)
		}
		if s.apiServer, err = s.apiServerAddresses(ctx); err != nil {
			return nil, err
		}
		if s.image, err = s.agentImage(ctx, p.options.Image); err != nil {
			return nil, err
		}
		s.facts = facts
		internal, err := ipam.Allocate(ipam.Space{Used: s.ownRanges()}, ipam.InternalRequest(s.ID, s.Name))
		if err != nil {
			return nil, &Error{Kind: Ranges, Cluster: s.Name, Doing: "find a range for the overlay", Err: err}
		}
		s.internal = internal[0].Prefix
		s.nodes, err = s.knownReports(ctx)
		return nil, err
	})
	if err != nil {
		return err
	}
	return p.refuse()
}

// refuse fails if a backend that the user asks for is none that the kernels can
// serve, as far as they are known: where agents run already, before anything is
// changed, and otherwise before there is more than these.
func (p *peer) refuse() error {
	_, _, err := decide(p.sides[0], p.sides[1], p.options)
	return err
}

func (p *peer) install(ctx context.Context) error {
	p.touched = true
	err := p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		changed, err := s.install(ctx, peer.Cluster, s)
		if err != nil {
			return changed, err
		}
		s.nodes, err = s.nodeReports(ctx)
		return changed, err
	})
	if err != nil {
		return err
	}
	return p.refuse()
}

func (p *peer) push(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, peer *side) (changed []string, err error) {
		allocated := false
		s.ledger, err = s.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
			err := s.allocate(cn, peer)
			allocated = err == nil
			return err
		})
		if err != nil {
			return nil, s.fail("allocate ranges", err)
		}
		if allocated {
			changed = append(changed, s.Name+": ranges of the ledger")
		}
		existing := &v1alpha1.Peering{}
		err = s.Client.Get(ctx, types.NamespacedName{Name: allocation(s.ledger, peer.ID).Name}, existing)
		if err == nil {
			s.existing = existing
			if s.serviceType, err = s.existingServiceType(ctx, existing.Name); err != nil {
				return changed, err
			}
		} else if !apierrors.IsNotFound(err) {
			return changed, s.fail("read Peering", err)
		}
		isNew, err := s.ensureKey(ctx, allocation(s.ledger, peer.ID).Name)
		if isNew {
			changed = append(changed, s.Name+": WireGuard key")
		}
		return changed, err
	})
	if err != nil {
		return err
	}
	forA, forB, err := decide(p.sides[0], p.sides[1], p.options)
	if err != nil {
		return err
	}
	decisions := map[*side]decided{p.sides[0]: forA, p.sides[1]: forB}
	// The client needs to be told where the server is; all else goes side by side.
	var endpoints []string
	known := make(chan struct{})
	return p.both(ctx, func(ctx context.Context, s, peer *side) (changed []string, err error) {
		d := decisions[s]
		g := manifests.Gateway{
			Peering: allocation(s.ledger, peer.ID).Name, Image: s.image, Role: d.role, Overlay: s.overlayKey, WireGuard: d.wireguard,
			Port: gatewayPort, ServiceType: d.serviceType,
		}
		first, deployment := g.Objects()
		if svc := g.Service(); svc != nil {
			first = append(first, svc)
		}
		for _, objs := range [][]client.Object{first, {deployment}} {
			more, err := s.applyAll(ctx, objs...)
			changed = append(changed, more...)
			if err != nil {
				return changed, err
			}
		}
		var told []string
		if d.role == v1alpha1.Server {
			if endpoints, err = s.endpoints(ctx, g); err != nil {
				return changed, err
			}
			close(known)
		} else {
			select {
			case <-known:
				told = endpoints
			case <-ctx.Done():
				return changed, context.Cause(ctx)
			}
		}
		spec, err := peeringSpec(s, peer, d, told)
		if err != nil {
			return changed, err
		}
		more, err := s.applyAll(ctx, &v1alpha1.Peering{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering"},
			ObjectMeta: metav1.ObjectMeta{Name: g.Peering, Labels: g.Labels()},
			Spec:       spec,
		})
		return append(changed, more...), err
	})
}

// apiServerAddresses are those to which every node and pod has to get.
func (c *Cluster) apiServerAddresses(ctx context.Context) ([]netip.Addr, error) {
	var slices discoveryv1.EndpointSliceList
	err := c.Client.List(ctx, &slices, client.InNamespace("default"), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if absent(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, c.fail("read the addresses of the API server", err)
	}
	var out []netip.Addr
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				if addr, err := netip.ParseAddr(a); err == nil {
					out = append(out, addr)
				}
			}
		}
	}
	return out, nil
}

// agentImage is the wished one, or that of the agents which are there.
func (c *Cluster) agentImage(ctx context.Context, wish string) (string, error) {
	if wish != "" {
		return wish, nil
	}
	ds := &appsv1.DaemonSet{}
	err := c.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds)
	if apierrors.IsNotFound(err) || err == nil && !ds.DeletionTimestamp.IsZero() {
		return c.DefaultImage, nil
	}
	if err != nil {
		return "", c.fail("read DaemonSet "+v1alpha1.NodeAgentName, err)
	}
	return ds.Spec.Template.Spec.Containers[0].Image, nil
}

// existingServiceType is that of the Service of a gateway that is a server,
// empty if there is none.
func (s *side) existingServiceType(ctx context.Context, peering string) (corev1.ServiceType, error) {
	svc := &corev1.Service{}
	g := manifests.Gateway{Peering: peering}
	err := s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: g.Name()}, svc)
	if client.IgnoreNotFound(err) != nil {
		return "", s.fail("read Service "+g.Name(), err)
	}
	return svc.Spec.Type, nil
}

// ensureKey makes the key of the side's gateway, if it has none, and remembers
// its public half.
func (s *side) ensureKey(ctx context.Context, peering string) (isNew bool, err error) {
	g := manifests.Gateway{Peering: peering}
	secret, isNew, err := s.ensureSecret(ctx, g.Name(), func() (*corev1.Secret, error) {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return nil, fmt.Errorf("make a WireGuard key: %w", err)
		}
		public := key.PublicKey()
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: g.Name(), Labels: g.Labels()},
			Immutable:  new(true),
			Data:       map[string][]byte{v1alpha1.KeyFilePrivate: key[:], v1alpha1.KeyFilePublic: public[:]},
		}, nil
	})
	if err != nil {
		return isNew, err
	}
	key, err := wgtypes.NewKey(secret.Data[v1alpha1.KeyFilePrivate])
	if err != nil {
		return isNew, s.fail("read the key in Secret "+secret.Name, errors.New("it is not a WireGuard key"))
	}
	s.publicKey = key.PublicKey().String()
	return isNew, nil
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

// endpoints waits until the gateway's Service has addresses, and returns them as
// host:port in the order in which they should be tried.
func (s *side) endpoints(ctx context.Context, g manifests.Gateway) (out []string, err error) {
	hint := fmt.Sprintf("%s -n %s describe service %s; or choose another --service-type", s.kubectl(), v1alpha1.Namespace, g.Name())
	err = s.poll(ctx, fmt.Sprintf("wait for an address of Service %s (%s)", g.Name(), g.ServiceType), hint, func(ctx context.Context) (string, error) {
		svc := &corev1.Service{}
		if err := s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: g.Name()}, svc); err != nil {
			return "", err
		}
		out = serviceEndpoints(svc, s.facts.Nodes)
		if len(out) == 0 {
			return "it has none yet", nil
		}
		return "", nil
	})
	return out, err
}

// serviceEndpoints is pure. Of many nodes, those that are left out are such that
// both internal and external addresses remain.
func serviceEndpoints(svc *corev1.Service, nodes []discovery.Node) []string {
	var out, external []string
	endpoint := func(host string, port int32) []string {
		if host == "" || port == 0 {
			return nil
		}
		return []string{net.JoinHostPort(host, strconv.Itoa(int(port)))}
	}
	port := svc.Spec.Ports[0]
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, in := range svc.Status.LoadBalancer.Ingress {
			out = append(out, endpoint(in.IP, port.Port)...)
			out = append(out, endpoint(in.Hostname, port.Port)...)
		}
	case corev1.ServiceTypeNodePort:
		for _, n := range nodes {
			if !n.Ready {
				continue
			}
			for _, a := range n.InternalIPs {
				out = append(out, endpoint(a.String(), port.NodePort)...)
			}
			for _, a := range n.ExternalIPs {
				external = append(external, endpoint(a.String(), port.NodePort)...)
			}
		}
	default:
		out = endpoint(svc.Spec.ClusterIP, port.Port)
	}
	internal := maxEndpoints - min(len(external), maxEndpoints/2)
	out = append(out[:min(len(out), internal)], external...)
	return out[:min(len(out), maxEndpoints)]
}

// wait returns when both gateways and all nodes measure that packets pass.
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
			a := allocation(cn, peer.ID)
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
	if err := s.Client.Get(ctx, types.NamespacedName{Name: allocation(s.ledger, peer.ID).Name}, live); err != nil {
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
	for i := range p.sides {
		if p.sides[i] == s {
			p.result.Views[i] = v
		}
	}
	return settled(live, v), nil
}

package cli

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
)

// flagGroup is the annotation of flags that --help lists below a heading of their own.
const flagGroup = "liqonet_flag_group"

// groupFlags has --help list flags below a heading.
func groupFlags(f *pflag.FlagSet, heading string, names ...string) {
	for _, flag := range names {
		_ = f.SetAnnotation(flag, flagGroup, []string{heading}) // it fails only for unknown flags
	}
}

// flagGroups describes flags in groups, wrapped to a width. The most common ones, which have no group, come first.
func flagGroups(f *pflag.FlagSet, width int) string {
	groups := map[string]*pflag.FlagSet{}
	f.VisitAll(func(flag *pflag.Flag) {
		heading := lo.FirstOr(flag.Annotations[flagGroup], "Flags")
		if groups[heading] == nil {
			groups[heading] = pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		groups[heading].AddFlag(flag)
	})
	return strings.Join(lo.Map(slices.Sorted(maps.Keys(groups)), func(heading string, _ int) string {
		return heading + ":\n" + groups[heading].FlagUsagesWrapped(width)
	}), "\n")
}

// fileFlag is the flag of a file with values for flags of one command. They precede those of the environment and of the configuration file.
// clustersKey is that file's key for clusters, which become an annotation of the flag: nothing else sets them.
const fileFlag, clustersKey = "filename", "clusters"

func init() { cobra.AddTemplateFunc("flagGroups", flagGroups) }

// override holds the flag values for one cluster, or for all.
type override struct {
	engine.ClusterOptions
	facts       discovery.Overrides
	fingerprint string
}

// option is a flag that can be set for each cluster.
type option struct {
	flag string
	// syntax is what the flag takes. If it begins with anyCluster, the flag can also be set for all clusters at once.
	syntax string
	// parse parses one item of the value.
	parse func(o *override, item string) error
	usage string
	// allowed are the allowed values, or none if others have to be parsed.
	allowed []string
}

const anyCluster, cidrs = "[CLUSTER=]", "CLUSTER=CIDR[,CIDR]"

func options() []option {
	prefixes := func(field func(*override) *[]netip.Prefix) func(*override, string) error {
		return func(o *override, item string) error {
			p, err := parsePrefix(item)
			*field(o) = append(*field(o), p)
			return err
		}
	}
	pods := prefixes(func(o *override) *[]netip.Prefix { return &o.facts.PodCIDRs })
	services := prefixes(func(o *override) *[]netip.Prefix { return &o.facts.ServiceCIDRs })
	nodes := prefixes(func(o *override) *[]netip.Prefix { return &o.facts.NodeCIDRs })
	reserved := prefixes(func(o *override) *[]netip.Prefix { return &o.facts.Reserved })
	setOverlay := func(o *override, item string) error { o.Overlay = apiValue(item); return nil }
	setWireGuard := func(o *override, item string) error { o.WireGuard = apiValue(item); return nil }
	return []option{
		{"overlay", anyCluster + "TYPE", setOverlay, "encapsulation between nodes and gateways, one for all peerings of a cluster; " +
			"auto is Geneve if all kernels support it, or else VXLAN", []string{"auto", "geneve", "vxlan"}},
		{"wireguard", anyCluster + "TYPE", setWireGuard, "the WireGuard implementation; " +
			"auto is the kernel if those of all nodes support it, or else user space", []string{"auto", "kernel", "userspace"}},
		{"service-type", anyCluster + "TYPE", addServiceType, "how the gateway of the server is exposed; " +
			"auto is a load balancer if the cluster is known to have one, or else a NodePort; CLUSTER=NodePort:PORT requests a port", serviceTypes},
		{"gateway-node-selector", anyCluster + "LABELS", addNodeLabel, "run gateways only on nodes with these labels, KEY=VALUE,…; " +
			"kept by later commands, an empty value resets it", nil},
		{"gateway-toleration", anyCluster + "TAINTS", addToleration, "taints that gateways tolerate, KEY[=VALUE][:EFFECT],…; " +
			"kept by later commands, an empty value resets it", nil},
		{"node-metrics", anyCluster + "WHERE", setNodeMetrics, "loopback or node: where node agents serve metrics, on 127.0.0.1 or on their " +
			"nodes' addresses, to everyone who can reach these; kept by later commands", nil},
		{"pod-cidr", cidrs, pods, "the pod ranges of a cluster, if they cannot be detected", nil},
		{"service-cidr", cidrs, services, "the service ranges of a cluster, if they cannot be detected", nil},
		{"node-cidr", cidrs, nodes, "the subnets of the nodes of a cluster, if they cannot be detected", nil},
		{"reserve", cidrs, reserved, "ranges that a cluster does not use for its peers", nil},
		{"map", "CLUSTER=[REAL=]MAPPED[,...]", addMapping, "the range by which the peer reaches the pods of a cluster; REAL can be omitted " +
			"if there is only one pod range of that length; CLUSTER=nodes=MAPPED, a /18, for the nodes", nil},
		{"endpoint", "CLUSTER=ADDRESS:PORT[,...]", addEndpoint, "addresses of a cluster's gateway behind a NAT or a load balancer of your own; " +
			"makes that cluster the server; CLUSTER=auto resets it", nil},
		{"limit-new", anyCluster + "NUMBER", setLimitNew, "new connections per second that each node of a cluster accepts from the peer, " +
			"1 to 1000000; none removes the limit", nil},
		{"limit-rate", anyCluster + "RATE", setLimitRate, "traffic that a cluster accepts from the peer, in bits per second of IP packets: " +
			"a number with kbit, mbit or gbit (powers of 1000), 1mbit to 100gbit; none removes the limit", nil},
		{"fingerprint", anyCluster + "FP", setFingerprint, "peer only if the identity key of a cluster has this fingerprint, SHA256:…, " +
			"as an earlier peer printed it; without CLUSTER, it is that of the second of two clusters", nil},
	}
}

// addOverrideFlags adds the flags that override what liqonet detects or decides.
func addOverrideFlags(f *pflag.FlagSet) {
	f.String("agent-image", "", "`IMAGE` of the agents in both clusters, also for their other peerings; one with a digest, NAME@sha256:…, "+
		"cannot be exchanged (default: the current one of the cluster, or that of this version, which the command version prints)")
	f.Int("planes", 0, "pairs of gateways of a peering, 1 to 4, on different nodes: if one fails, the others continue "+
		"(default: as before, or else 2, or 1 if a cluster has only one node for gateways)")
	f.Var(&enumFlag{kind: "MODE", allowed: []string{"single", "spread"}}, "planes-mode", "single or spread: whether a node sends "+
		"through one plane, and another one if that fails, or through all working planes, by pairs of addresses "+
		"(default: as before, or else single)")
	f.String("server", "", "`CLUSTER` whose gateway is the server, to which the other one connects (default: the one that is reachable)")
	addClusterFlags(f, options())
	f.Bool("services", false, "exchange services, as services enable does; kept by later commands")
	addServiceFlags(f)
	groupFlags(f, "Flags for addresses", "map", "node-cidr", "pod-cidr", "reserve", "service-cidr")
	groupFlags(f, "Flags for agents and gateways", "agent-image", "endpoint", "gateway-node-selector", "gateway-toleration", "node-metrics",
		"overlay", "planes-mode", "server", "service-type", "wireguard")
	groupFlags(f, "Flags for limits", "limit-new", "limit-rate")
}

// addClusterFlags adds flags that can be set for each cluster.
func addClusterFlags(f *pflag.FlagSet, options []option) {
	for _, o := range options {
		if o.allowed != nil {
			o.usage = strings.Join(o.allowed, ", ") + ": " + o.usage
		}
		f.Var(&clusterFlag{syntax: o.syntax, allowed: o.allowed}, o.flag, o.usage)
	}
}

// addServiceFlags adds the flags about services.
func addServiceFlags(f *pflag.FlagSet) {
	addClusterFlags(f, serviceOptions())
	f.Lookup("standby").NoOptDefVal = "true"
	names := lo.Map(serviceOptions(), func(o option, _ int) string { return o.flag })
	if f.Lookup("services") != nil {
		names = append(names, "services")
	}
	groupFlags(f, "Flags for services", names...)
}

// serviceOptions are the options about services. Later commands keep them.
func serviceOptions() []option {
	return []option{
		{"import", anyCluster + "NAMESPACES", func(o *override, item string) error {
			o.Services.Import = v1alpha1.ImportPolicy(apiValue(item))
			return nil
		}, "into which namespaces a cluster imports the peer's services: into all that exist, except those labeled liqonet.io/import=false; only into " +
			"those labeled liqonet.io/import=true; or into none", []string{"all", "labeled", "none"}},
		{"precedence", anyCluster + "WHOSE", func(o *override, item string) error {
			o.Services.Precedence = v1alpha1.Precedence(apiValue(item))
			return nil
		}, "whose export of a service decides if both clusters export it differently: the older one, or a cluster's own", []string{"age", "own"}},
		{"standby", anyCluster + "BOOL", func(o *override, item string) error {
			o.Services.Endpoints = lo.Ternary(item == "true", v1alpha1.EndpointsStandby, v1alpha1.EndpointsEqual)
			return nil
		}, "whether a cluster uses the peer's endpoints of a service only while it has no ready ones of its own", []string{"false", "true"}},
		{"cluster-id", "CLUSTER=ID", func(o *override, item string) error {
			o.Services.ID = item
			if bad := validation.IsDNS1123Label(item); len(bad) > 0 {
				return errors.New(bad[0])
			}
			return nil
		}, "what the other clusters call a cluster in EndpointSlices and names of pods, a DNS label (default: its name)", nil},
	}
}

// peerOptions parses the override flags for the clusters of a command line.
func peerOptions(f *pflag.FlagSet, refs []string, clusters []*kube.Cluster) (o engine.Options, err error) {
	if o.Image, err = agentImage(f); err != nil {
		return o, err
	}
	if o.Planes, _ = f.GetInt("planes"); f.Changed("planes") && (o.Planes < 1 || o.Planes > ipam.Planes) {
		return o, fmt.Errorf("--planes: %d is not a number from 1 to %d", o.Planes, ipam.Planes)
	}
	o.PlanesMode = v1alpha1.PlanesMode(apiValue(f.Lookup("planes-mode").Value.String()))
	for name, option := range map[string]*bool{"replace": &o.Replace, "adopt-namespace": &o.AdoptNamespace, "keep-failed": &o.KeepFailed} {
		*option, _ = f.GetBool(name)
	}
	if server := f.Lookup("server").Value.String(); server != "" {
		k, err := clusterIndex(server, refs, clusters)
		if err != nil {
			return o, fmt.Errorf("--server: %w", err)
		}
		o.Server = clusters[k].ID
	}
	all, each, err := readOptions(f, slices.Concat(options(), serviceOptions()), refs, clusters)
	if err != nil {
		return o, err
	}
	if all.NodePort != 0 {
		return o, fmt.Errorf("--service-type: a port is for one cluster: CLUSTER=%s:%d", all.ServiceType, all.NodePort)
	}
	if o.Fingerprints, err = fingerprints(all, each, clusters); err != nil {
		return o, err
	}
	o.Overlay, o.WireGuard, o.ServiceType, o.Gateways, o.NodeMetrics = all.Overlay, all.WireGuard, all.ServiceType, all.Gateways, all.NodeMetrics
	o.Facts, o.Clusters = map[string]discovery.Overrides{}, map[string]engine.ClusterOptions{}
	services, _ := f.GetBool("services")
	for k, c := range clusters {
		each[k].LimitNew, each[k].LimitRate = cmp.Or(each[k].LimitNew, all.LimitNew), cmp.Or(each[k].LimitRate, all.LimitRate)
		each[k].setServices(all, lo.Ternary(services, plan.ServicesOn, ""))
		o.Facts[c.ID], o.Clusters[c.ID] = each[k].facts, each[k].ClusterOptions
	}
	return o, nil
}

// setServices sets the choices about services, of which some may be for all clusters.
func (o *override) setServices(all override, exchange plan.ServicesExchange) {
	s, of := &o.Services, all.Services
	s.Exchange, s.Import, s.Precedence, s.Endpoints = exchange, cmp.Or(s.Import, of.Import), cmp.Or(s.Precedence, of.Precedence), cmp.Or(s.Endpoints, of.Endpoints)
}

// readOptions parses the flags that can be set for each cluster: their values for all clusters, and for each one.
func readOptions(f *pflag.FlagSet, options []option, refs []string, clusters []*kube.Cluster) (all override, each []override, err error) {
	each = make([]override, len(clusters))
	read := func(value string, option option) error {
		target, items := &all, value
		if cluster, rest, ok := strings.Cut(value, "="); ok {
			if k, err := clusterIndex(cluster, refs, clusters); err == nil {
				target, items = &each[k], rest
			} else if !strings.HasPrefix(option.flag, "gateway-") { // items of those may contain "=" too
				return err
			}
		} else if !strings.HasPrefix(option.syntax, anyCluster) {
			return errors.New("must be CLUSTER=VALUE")
		}
		for item := range strings.SplitSeq(items, ",") {
			if err := option.parse(target, item); err != nil {
				return err
			}
		}
		return nil
	}
	for _, option := range options {
		for _, value := range f.Lookup(option.flag).Value.(listFlag).GetSlice() {
			if err := read(value, option); err != nil {
				return all, nil, fmt.Errorf("--%s %q: %w", option.flag, value, err)
			}
		}
	}
	return all, each, nil
}

// apiValue returns the API's spelling of a flag value, which users write in lower case. It returns other values, such as auto, unchanged.
func apiValue(flag string) string {
	values := []string{
		string(v1alpha1.Geneve), string(v1alpha1.VXLAN), string(v1alpha1.KernelWireGuard), string(v1alpha1.UserSpaceWireGuard),
		string(v1alpha1.PlanesSingle), string(v1alpha1.PlanesSpread),
		string(v1alpha1.ImportAll), string(v1alpha1.ImportLabeled), string(v1alpha1.ImportNone),
		string(v1alpha1.PrecedenceAge), string(v1alpha1.PrecedenceOwn),
	}
	return lo.FindOrElse(values, flag, func(value string) bool { return strings.EqualFold(value, flag) })
}

// clusterIndex returns the index of the cluster with this name, or with this argument of the command line.
func clusterIndex(name string, refs []string, clusters []*kube.Cluster) (int, error) {
	for k, c := range clusters {
		if name == c.Name || name == refs[k] {
			return k, nil
		}
	}
	return 0, fmt.Errorf("%q is none of the clusters %s", name, strings.Join(refs, ", "))
}

// portType is the only value with a port, as NodePort:PORT.
const portType = "NodePort"

var serviceTypes = []string{"auto", portType, "LoadBalancer", "ClusterIP"}

// addServiceType parses TYPE or TYPE:PORT.
func addServiceType(o *override, item string) error {
	kind, port, hasPort := strings.Cut(item, ":")
	o.ServiceType = kind
	if !hasPort {
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a port from 1 to 65535", port)
	}
	o.NodePort = int32(n)
	return nil
}

// addNodeLabel parses KEY=VALUE. An empty item resets an earlier choice.
func addNodeLabel(o *override, item string) error {
	o.Gateways.NodeSelector = lo.CoalesceMapOrEmpty(o.Gateways.NodeSelector)
	if item == "" {
		return nil
	}
	key, value, ok := strings.Cut(item, "=")
	if !ok {
		return fmt.Errorf("%q is not KEY=VALUE", item)
	}
	if before, ok := o.Gateways.NodeSelector[key]; ok && before != value {
		return fmt.Errorf("no node has both %s=%s and %s=%s", key, before, key, value)
	}
	o.Gateways.NodeSelector[key] = value
	return checkLabel(key, value)
}

// addToleration parses KEY[=VALUE][:EFFECT]. An empty item resets an earlier choice.
func addToleration(o *override, item string) error {
	o.Gateways.Tolerations = lo.CoalesceSliceOrEmpty(o.Gateways.Tolerations)
	if item == "" {
		return nil
	}
	label, effect, _ := strings.Cut(item, ":")
	key, value, _ := strings.Cut(label, "=")
	operator := lo.Ternary(value == "", corev1.TolerationOpExists, corev1.TolerationOpEqual)
	toleration := corev1.Toleration{Key: key, Operator: operator, Value: value, Effect: corev1.TaintEffect(effect)}
	o.Gateways.Tolerations = append(o.Gateways.Tolerations, toleration)
	if effects := []string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}; !slices.Contains(effects, effect) {
		return fmt.Errorf("effect %q must be one of %s", effect, strings.Join(effects[1:], ", "))
	}
	return checkLabel(key, value)
}

// checkLabel returns an error if the key or value is not valid for a label or taint.
func checkLabel(key, value string) error {
	if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bad) > 0 {
		return fmt.Errorf("%s=%s is invalid: %s", key, value, strings.Join(bad, "; "))
	}
	return nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		err = fmt.Errorf("%q is not a CIDR such as 10.60.0.0/16", s)
	case p != p.Masked():
		err = fmt.Errorf("%s has host bits; did you mean %s?", p, p.Masked())
	}
	return p, err
}

// addMapping parses MAPPED, REAL=MAPPED or nodes=MAPPED.
func addMapping(o *override, item string) error {
	real, mapped, hasReal := strings.Cut(item, "=")
	if !hasReal {
		real, mapped = "", item
	}
	to, err := parsePrefix(mapped)
	if err != nil {
		return err
	}
	if real == "nodes" {
		if to.Bits() != ipam.ExternalBits {
			return fmt.Errorf("the range of nodes has to be a /%d", ipam.ExternalBits)
		}
		o.MapNodes = to
		return nil
	}
	m := ipam.Mapping{Mapped: to}
	if hasReal {
		if m.Real, err = parsePrefix(real); err != nil {
			return err
		}
		if err := m.Validate(); err != nil {
			return err
		}
	}
	o.Map = append(o.Map, m)
	return nil
}

// addEndpoint parses ADDRESS:PORT or auto.
func addEndpoint(o *override, item string) error {
	if item == "auto" {
		o.AutoEndpoints = true
		return nil
	}
	host, port, err := v1alpha1.SplitEndpoint(item)
	if err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(host); err == nil && !addr.IsGlobalUnicast() {
		return fmt.Errorf("gateways of other clusters cannot reach %s", addr)
	}
	o.Endpoints = append(o.Endpoints, net.JoinHostPort(host, strconv.Itoa(int(port))))
	return nil
}

// setNodeMetrics parses loopback or node.
func setNodeMetrics(o *override, item string) error {
	if item != plan.MetricsLoopback && item != plan.MetricsNode {
		return fmt.Errorf("%q must be one of %s, %s", item, plan.MetricsLoopback, plan.MetricsNode)
	}
	o.NodeMetrics = item
	return nil
}

// setLimitNew parses a number of connections per second.
func setLimitNew(o *override, item string) (err error) {
	o.LimitNew, err = parseLimit(item, map[string]int64{"": 1}, 1, 1e6, "none, or a whole number from 1 to 1000000")
	return err
}

// setLimitRate parses a number of bits per second with its unit, as in tc(8).
func setLimitRate(o *override, item string) (err error) {
	o.LimitRate, err = parseLimit(item, map[string]int64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}, 1e6, 1e11,
		"none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit")
	return err
}

// setFingerprint parses a fingerprint as peer prints it.
func setFingerprint(o *override, item string) error {
	sum, isHash := strings.CutPrefix(item, "SHA256:")
	if raw, err := base64.RawStdEncoding.DecodeString(sum); !isHash || err != nil || len(raw) != sha256.Size {
		return fmt.Errorf("%q is not SHA256: and 43 characters, as peer prints it", item)
	}
	if o.fingerprint != "" && o.fingerprint != item {
		return fmt.Errorf("no key has both %s and %s", o.fingerprint, item)
	}
	o.fingerprint = item
	return nil
}

// fingerprints returns the required fingerprints by the IDs of clusters. One without a name is that of the second of two clusters.
func fingerprints(all override, each []override, clusters []*kube.Cluster) (map[string]string, error) {
	if all.fingerprint != "" {
		if len(clusters) != 2 || each[1].fingerprint != "" {
			return nil, errors.New("--fingerprint: name the cluster: CLUSTER=" + all.fingerprint)
		}
		each[1].fingerprint = all.fingerprint
	}
	var required map[string]string
	for k, c := range clusters {
		if f := each[k].fingerprint; f != "" {
			required = lo.Assign(required, map[string]string{c.ID: f})
		}
	}
	return required, nil
}

// parseLimit parses a number with a unit. It returns 0 for both 0 and none, and an error if the item is not what is valid.
func parseLimit(item string, units map[string]int64, minValue, maxValue int64, valid string) (*int64, error) {
	if item == "none" || item == "0" {
		return new(int64), nil
	}
	unit := strings.TrimLeft(item, "0123456789")
	n, err := strconv.ParseInt(strings.TrimSuffix(item, unit), 10, 64)
	factor, known := units[strings.ToLower(unit)]
	if err != nil || !known || n > maxValue/factor || n*factor < minValue {
		return nil, fmt.Errorf("%q must be %s", item, valid)
	}
	return new(n * factor), nil
}

// enumFlag is a flag whose value is one of a list, or empty.
type enumFlag struct {
	value string
	// kind is the type that --help shows.
	kind    string
	allowed []string
}

// String returns the value.
func (o *enumFlag) String() string { return o.value }

// Type returns the type that --help shows.
func (o *enumFlag) Type() string { return o.kind }

// Completions returns the allowed values.
func (o *enumFlag) Completions() []cobra.Completion { return o.allowed }

// Set returns an error if the value is not in the list.
func (o *enumFlag) Set(s string) error {
	if s != "" && !slices.Contains(o.allowed, s) {
		return fmt.Errorf("%q must be one of %s", s, strings.Join(o.allowed, ", "))
	}
	o.value = s
	return nil
}

// listFlag is a flag that can be repeated.
type listFlag interface{ GetSlice() []string }

// clusterFlag is a repeatable flag whose values are for all clusters or, as CLUSTER=VALUE, for one of them.
type clusterFlag struct {
	syntax string
	// allowed are the allowed values, or none if others have to be parsed. The first one is the default.
	allowed []string
	values  []string
}

// String returns the values in the format of the environment variable.
func (c *clusterFlag) String() string {
	if len(c.values) == 0 {
		return lo.FirstOrEmpty(c.allowed)
	}
	return strings.Join(c.values, " ")
}

// Type returns the type that --help shows.
func (c *clusterFlag) Type() string { return c.syntax }

// GetSlice returns the values, spelled as in the list.
func (c *clusterFlag) GetSlice() []string { return c.values }

// Completions returns the allowed values.
func (c *clusterFlag) Completions() []cobra.Completion { return c.allowed }

// Set returns an error if the value is not in the list.
func (c *clusterFlag) Set(s string) error {
	at := strings.LastIndex(s, "=") + 1
	value, _, hasPort := strings.Cut(s[at:], ":")
	i := slices.IndexFunc(c.allowed, func(a string) bool { return strings.EqualFold(a, value) })
	switch {
	case c.allowed == nil:
	case i < 0 || hasPort && c.allowed[i] != portType:
		return fmt.Errorf("%q must be one of %s", s[at:], strings.Join(c.allowed, ", "))
	default:
		s = s[:at] + c.allowed[i] + s[at+len(value):]
	}
	c.values = append(c.values, s)
	return nil
}

// agentImage returns the value of --agent-image, and an error if it is not an image reference.
func agentImage(f *pflag.FlagSet) (string, error) {
	image := f.Lookup("agent-image").Value.String()
	if _, err := name.ParseReference(image); image != "" && err != nil {
		return "", fmt.Errorf("--agent-image: %w", err)
	}
	return image, nil
}

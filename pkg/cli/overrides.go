package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/version"
)

// What these flags may be; the first one is the default.
func overlays() *choices   { return newChoices("", "auto", "geneve", "vxlan") }
func wireguards() *choices { return newChoices("", "auto", "kernel", "userspace") }
func serviceTypes() *choices {
	return newChoices("NodePort", "auto", "NodePort", "LoadBalancer", "ClusterIP")
}

// addOverrides gives a command the flags by which the user overrules what is
// found out or decided.
func addOverrides(f *pflag.FlagSet) {
	f.String("agent-image", "", "image of the agents (default: the one that is there already, or else "+version.AgentImage()+")")
	f.Var(overlays(), "overlay", "encapsulation between nodes and gateways; auto takes the best that all kernels can do")
	f.Var(wireguards(), "wireguard", "who does WireGuard's work; auto takes the kernel where all can")
	f.Var(serviceTypes(), "service-type", "how a gateway that is the server is exposed; NodePort:PORT wishes for a port")
	f.StringArray("pod-cidr", nil, "CLUSTER=CIDR[,CIDR]: the pod ranges of a cluster, if they cannot be found out")
	f.StringArray("service-cidr", nil, "CLUSTER=CIDR[,CIDR]: the same for the service ranges")
	f.StringArray("node-cidr", nil, "CLUSTER=CIDR[,CIDR]: the same for the subnets of the nodes")
	f.StringArray("reserve", nil, "CLUSTER=CIDR[,CIDR]: ranges that a cluster keeps free of its peers")
	f.StringArray("map", nil, "CLUSTER=[REAL=]MAPPED[,…]: the range by which the peer is to know the pods of a cluster; CLUSTER=nodes=MAPPED for its nodes")
	f.String("server", "", "CLUSTER whose gateway is called by the other's (default: the one that can be reached)")
	f.StringArray("endpoint", nil, "CLUSTER=ADDRESS:PORT[,…]: where the gateway of a cluster is called, behind a NAT or load balancer; CLUSTER=auto takes that back")
}

// peerOptions reads these flags for the clusters of a command line.
func (g *globals) peerOptions(refs []string, clusters []*peering.Cluster) (o peering.Options, err error) {
	o.Facts, o.Clusters = map[string]discovery.Overrides{}, map[string]peering.ClusterOptions{}
	if o.Image = g.config.GetString("agent-image"); o.Image != "" {
		if _, err := name.ParseReference(o.Image); err != nil {
			return o, usageError{fmt.Errorf("--agent-image: %w", err)}
		}
	}
	if server := g.config.GetString("server"); server != "" {
		c, _, err := clusterValue(server+"=", refs, clusters)
		if err != nil {
			return o, usageError{fmt.Errorf("--server: %w", err)}
		}
		o.Server = c.ID
	}
	for flag, set := range map[string]func(c *peering.Cluster, value string) error{
		"overlay": choice(overlays(), &o.Overlay, &o, func(c *peering.ClusterOptions, v string, _ int32) { c.Overlay = v }),
		"wireguard": choice(wireguards(), &o.WireGuard, &o, func(c *peering.ClusterOptions, v string, _ int32) {
			c.WireGuard = v
		}),
		"service-type": choice(serviceTypes(), &o.ServiceType, &o, func(c *peering.ClusterOptions, v string, port int32) {
			c.ServiceType, c.NodePort = v, port
		}),
	} {
		for _, value := range g.config.GetStringSlice(flag) {
			var c *peering.Cluster
			if strings.Contains(value, "=") {
				var err error
				if c, value, err = clusterValue(value, refs, clusters); err != nil {
					return o, usageError{fmt.Errorf("--%s: %w", flag, err)}
				}
			}
			if err := set(c, value); err != nil {
				return o, usageError{fmt.Errorf("--%s: %w", flag, err)}
			}
		}
	}
	for flag, field := range map[string]func(*discovery.Overrides) *[]netip.Prefix{
		"pod-cidr":     func(f *discovery.Overrides) *[]netip.Prefix { return &f.PodCIDRs },
		"service-cidr": func(f *discovery.Overrides) *[]netip.Prefix { return &f.ServiceCIDRs },
		"node-cidr":    func(f *discovery.Overrides) *[]netip.Prefix { return &f.NodeCIDRs },
		"reserve":      func(f *discovery.Overrides) *[]netip.Prefix { return &f.Reserved },
	} {
		for _, value := range g.config.GetStringSlice(flag) {
			id, prefixes, err := clusterPrefixes(value, refs, clusters)
			if err != nil {
				return o, usageError{fmt.Errorf("--%s %q: %w", flag, value, err)}
			}
			facts := o.Facts[id]
			list := field(&facts)
			*list = append(*list, prefixes...)
			o.Facts[id] = facts
		}
	}
	for flag, add := range map[string]func(c *peering.ClusterOptions, item string) error{"map": addMapping, "endpoint": addEndpoint} {
		for _, value := range g.config.GetStringSlice(flag) {
			c, rest, err := clusterValue(value, refs, clusters)
			if err == nil {
				options := o.Clusters[c.ID]
				for _, item := range strings.Split(rest, ",") {
					err = errors.Join(err, add(&options, item))
				}
				o.Clusters[c.ID] = options
			}
			if err != nil {
				return o, usageError{fmt.Errorf("--%s %q: %w", flag, value, err)}
			}
		}
	}
	return o, nil
}

// choice returns what sets a value for one cluster, or for all if none is named.
func choice(allowed *choices, all *string, o *peering.Options, one func(*peering.ClusterOptions, string, int32)) func(*peering.Cluster, string) error {
	return func(c *peering.Cluster, value string) error {
		v, port, err := allowed.parse(value)
		if err != nil {
			return err
		}
		if c == nil {
			if port != 0 {
				return fmt.Errorf("a port is one cluster's: CLUSTER=%s", value)
			}
			*all = v
			return nil
		}
		options := o.Clusters[c.ID]
		one(&options, v, port)
		o.Clusters[c.ID] = options
		return nil
	}
}

// clusterValue takes CLUSTER=… apart, where CLUSTER is as the user wrote it in
// this command line.
func clusterValue(value string, refs []string, clusters []*peering.Cluster) (c *peering.Cluster, rest string, err error) {
	length := -1
	for k := range clusters {
		for _, name := range []string{clusters[k].Name, refs[k]} {
			if after, ok := strings.CutPrefix(value, name+"="); ok && len(name) > length {
				c, rest, length = clusters[k], after, len(name)
			}
		}
	}
	if c == nil {
		before, _, ok := strings.Cut(value, "=")
		if !ok {
			return nil, "", errors.New("must be CLUSTER=VALUE")
		}
		return nil, "", fmt.Errorf("%q is none of the clusters %s", before, strings.Join(refs, ", "))
	}
	return c, rest, nil
}

// clusterPrefixes parses CLUSTER=CIDR[,CIDR].
func clusterPrefixes(value string, refs []string, clusters []*peering.Cluster) (id string, out []netip.Prefix, err error) {
	if !strings.Contains(value, "=") {
		return "", nil, errors.New("must be CLUSTER=CIDR[,CIDR]")
	}
	c, rest, err := clusterValue(value, refs, clusters)
	if err != nil {
		return "", nil, err
	}
	for _, s := range strings.Split(rest, ",") {
		p, err := parsePrefix(s)
		if err != nil {
			return "", nil, err
		}
		out = append(out, p)
	}
	return c.ID, out, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err == nil && p != p.Masked() {
		err = fmt.Errorf("%s has host bits; did you mean %s?", p, p.Masked())
	}
	return p, err
}

// addMapping parses MAPPED, REAL=MAPPED or nodes=MAPPED.
func addMapping(o *peering.ClusterOptions, item string) error {
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
func addEndpoint(o *peering.ClusterOptions, item string) error {
	if item == "auto" {
		o.AutoEndpoints = true
		return nil
	}
	host, port, err := net.SplitHostPort(item)
	if err != nil {
		return fmt.Errorf("%q is not ADDRESS:PORT", item)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is not a port from 1 to 65535", port)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return fmt.Errorf("no gateway of another cluster can call %s", addr)
		}
	} else if len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 || numeric(host) {
		return fmt.Errorf("%q is neither an address nor a host name", host)
	}
	o.Endpoints = append(o.Endpoints, item)
	return nil
}

// numeric says that the last label is a number: a mistyped address.
func numeric(host string) bool {
	_, err := strconv.Atoi(host[strings.LastIndex(host, ".")+1:])
	return err == nil
}

package services

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Exporter is one cluster's export of a service, as this cluster sees it.
type Exporter struct {
	// ID is the cluster's ID among the clusters that exchange services. IsOwn is set for this cluster.
	ID     string
	IsOwn  bool
	Record *v1alpha1.ServiceRecord
	// Settings are those of the peering, nil for this cluster.
	Settings *v1alpha1.PeeringServices
	// Withdrawn means that the peer cannot be reached for longer than a short outage lasts.
	Withdrawn bool
}

// Merged is what several exports of one service are together.
type Merged struct {
	Key Key
	// Record has the properties of the service, without slices.
	Record v1alpha1.ServiceRecord
	// Ports are the service's ports. A name is unique, and may be empty.
	Ports []v1alpha1.RecordPort
	// Clusters are the IDs of the clusters that export the service, sorted.
	Clusters []string
	Slices   []MergedSlice
	// Conflicts are the reasons for the condition Conflict, sorted, and Differs describes each of them.
	Conflicts []string
	Differs   []string
}

// MergedSlice are endpoints of one cluster.
type MergedSlice struct {
	Cluster   string
	IsOwn     bool
	Withdrawn bool
	v1alpha1.RecordSlice
}

// Merge returns what several exports of a service are together: the rules of KEP-1645, in "Constraints and conflict
// resolution". The order of exporters does not matter, and their IDs are unique. There is at least one. now is when this is
// computed: a peer cannot win a conflict by a time in the future.
func Merge(k Key, exporters []Exporter, now time.Time) *Merged {
	exporters = ordered(exporters, now)
	first := exporters[0].Record
	m := &Merged{Key: k, Record: *first.DeepCopy()}
	m.Record.Slices, m.Record.Ports, m.Record.Omitted = nil, nil, 0
	ports := mergePorts(exporters)
	m.Ports = ports.all
	conflicts := map[string]string{}
	oldest := lo.MinBy(exporters, func(a, b Exporter) bool { return a.Record.Created.Before(&b.Record.Created) })
	decides := lo.Ternary(oldest.Record.Created.Equal(&first.Created), "whose export is the oldest and decides", "whose export has precedence and decides")
	for _, e := range exporters[1:] {
		for reason, differs := range differences(first, e.Record) {
			if _, has := conflicts[reason]; !has {
				conflicts[reason] = fmt.Sprintf("%s: %s in %s, and %s in %s, %s", differs.field, differs.b, e.ID, differs.a, exporters[0].ID, decides)
			}
		}
	}
	if ports.conflict != "" {
		conflicts[string(v1beta1.ServiceExportReasonPortConflict)] = ports.conflict
	}
	for _, reason := range slices.Sorted(maps.Keys(conflicts)) {
		m.Conflicts, m.Differs = append(m.Conflicts, reason), append(m.Differs, conflicts[reason])
	}
	// Endpoints that are ready in this cluster keep others on standby.
	ownReady := lo.ContainsBy(exporters, func(e Exporter) bool {
		return e.IsOwn && lo.ContainsBy(e.Record.Slices, func(s v1alpha1.RecordSlice) bool {
			return lo.ContainsBy(s.Endpoints, func(e v1alpha1.RecordEndpoint) bool { return e.Ready })
		})
	})
	for i, e := range exporters {
		m.Clusters = append(m.Clusters, e.ID)
		standby := ownReady && !e.IsOwn && e.Settings != nil && e.Settings.Endpoints == v1alpha1.EndpointsStandby
		for _, s := range e.Record.Slices {
			m.Slices = append(m.Slices, mergedSlice(e, s, ports.renamed[i], standby))
		}
	}
	slices.Sort(m.Clusters)
	slices.SortFunc(m.Slices, func(a, b MergedSlice) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.ID, b.ID))
	})
	return m
}

// ordered returns the exporters, the one that decides first. That is the oldest one. If two are equally old, their IDs decide. This
// cluster's comes before the first of which the settings say so.
func ordered(in []Exporter, now time.Time) []Exporter {
	out := slices.Clone(in)
	created := func(e Exporter) time.Time {
		if t := e.Record.Created.Time; t.Before(now) {
			return t
		}
		return now
	}
	slices.SortFunc(out, func(a, b Exporter) int { return cmp.Or(created(a).Compare(created(b)), strings.Compare(a.ID, b.ID)) })
	own := slices.IndexFunc(out, func(e Exporter) bool { return e.IsOwn })
	below := slices.IndexFunc(out, func(e Exporter) bool {
		return !e.IsOwn && e.Settings != nil && e.Settings.Precedence == v1alpha1.PrecedenceOwn
	})
	if own >= 0 && below >= 0 && below < own {
		e := out[own]
		out = slices.Insert(slices.Delete(out, own, own+1), below, e)
	}
	return out
}

// portMap tells which ports of each exporter are ports of the merged service.
type portMap struct {
	all []v1alpha1.RecordPort
	// renamed maps the names of an exporter's ports to those of the service. Ports that are missing get no traffic.
	renamed  []map[string]string
	conflict string
}

// mergePorts returns the union of all ports: first by name, then by protocol and number. No two ports have the same name,
// and the empty one counts. An exporter gets traffic for a port only if it has it.
func mergePorts(exporters []Exporter) (out portMap) {
	for i, e := range exporters {
		renamed := map[string]string{}
		for _, p := range e.Record.Ports {
			sameName := slices.IndexFunc(out.all, func(q v1alpha1.RecordPort) bool { return q.Name == p.Name })
			isUsed := func(name string) bool { return slices.Contains(slices.Collect(maps.Values(renamed)), name) }
			sameNumber := slices.IndexFunc(out.all, func(q v1alpha1.RecordPort) bool { return q.Protocol == p.Protocol && q.Port == p.Port })
			conflict := ""
			switch {
			case sameName >= 0 && sameName == sameNumber && !isUsed(p.Name):
				renamed[p.Name] = p.Name
				if q := out.all[sameName]; q.AppProtocol != p.AppProtocol {
					conflict = fmt.Sprintf("port %d has another application protocol in %s: %q", p.Port, e.ID, p.AppProtocol)
				}
			case sameName >= 0:
				conflict = fmt.Sprintf("port %q of %s is %s %d, and gets no traffic", p.Name, e.ID, p.Protocol, p.Port)
			case sameNumber >= 0:
				if older := out.all[sameNumber].Name; !isUsed(older) {
					renamed[p.Name] = older
				}
				conflict = fmt.Sprintf("%s %d is called %q in %s", p.Protocol, p.Port, p.Name, e.ID)
			case len(out.all) < v1alpha1.MaxServicePorts:
				out.all = append(out.all, p)
				renamed[p.Name] = p.Name
				if i > 0 {
					conflict = fmt.Sprintf("only some clusters have port %d, among them %s", p.Port, e.ID)
				}
			}
			out.conflict = cmp.Or(out.conflict, conflict)
		}
		// The first exporter's ports are those of the service, so a missing one is a difference, too.
		if missing, found := lo.Find(out.all, func(q v1alpha1.RecordPort) bool {
			return !slices.Contains(slices.Collect(maps.Values(renamed)), q.Name)
		}); found && i > 0 {
			out.conflict = cmp.Or(out.conflict, fmt.Sprintf("%s does not have port %d", e.ID, missing.Port))
		}
		out.renamed = append(out.renamed, renamed)
	}
	return out
}

// difference is a property in which two exports differ, with its values.
type difference struct{ field, a, b string }

// differences returns the properties in which two exports differ, except ports, by the reason for the condition Conflict.
func differences(a, b *v1alpha1.ServiceRecord) map[string]difference {
	out := map[string]difference{}
	compare := func(reason v1beta1.ServiceExportConditionReason, field, a, b string) {
		if a != b {
			out[string(reason)] = difference{field, cmp.Or(a, "none"), cmp.Or(b, "none")}
		}
	}
	affinity := func(r *v1alpha1.ServiceRecord) string {
		return string(lo.Ternary(r.SessionAffinity == corev1.ServiceAffinityClientIP, r.SessionAffinity, corev1.ServiceAffinityNone))
	}
	policy := func(r *v1alpha1.ServiceRecord) string {
		return string(cmp.Or(r.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster))
	}
	compare(v1beta1.ServiceExportReasonTypeConflict, "type", string(a.Type), string(b.Type))
	if a.Type == b.Type && a.Type == v1alpha1.ClusterSetIP {
		compare(v1beta1.ServiceExportReasonSessionAffinityConflict, "session affinity", affinity(a), affinity(b))
		if affinity(a) == affinity(b) {
			compare(v1beta1.ServiceExportReasonSessionAffinityConfigConflict, "timeout of the session affinity", fmt.Sprintf("%d s", a.SessionAffinitySeconds), fmt.Sprintf("%d s", b.SessionAffinitySeconds))
		}
	}
	compare(v1beta1.ServiceExportReasonInternalTrafficPolicyConflict, "internal traffic policy", policy(a), policy(b))
	compare(v1beta1.ServiceExportReasonTrafficDistributionConflict, "traffic distribution", a.TrafficDistribution, b.TrafficDistribution)
	if !maps.Equal(a.Labels, b.Labels) {
		compare(v1beta1.ServiceExportReasonLabelsConflict, "exported labels", pairs(a.Labels), pairs(b.Labels))
	}
	if !maps.Equal(a.Annotations, b.Annotations) {
		compare(v1beta1.ServiceExportReasonAnnotationsConflict, "exported annotations", pairs(a.Annotations), pairs(b.Annotations))
	}
	return out
}

// pairs names labels or annotations, the first few by name.
func pairs(in map[string]string) string {
	all := lo.Map(slices.Sorted(maps.Keys(in)), func(k string, _ int) string { return fmt.Sprintf("%s=%.40q", k, in[k]) })
	return strings.Join(all[:min(len(all), 3)], " ") + lo.Ternary(len(all) > 3, fmt.Sprintf(" and %d more", len(all)-3), "")
}

// mergedSlice returns a slice of an exporter with the ports that the service has, by the service's names.
func mergedSlice(e Exporter, s v1alpha1.RecordSlice, renamed map[string]string, standby bool) MergedSlice {
	out := MergedSlice{Cluster: e.ID, IsOwn: e.IsOwn, Withdrawn: e.Withdrawn, RecordSlice: *s.DeepCopy()}
	out.Ports = lo.FilterMap(s.Ports, func(p v1alpha1.SlicePort, _ int) (v1alpha1.SlicePort, bool) {
		name, has := renamed[p.Name]
		p.Name = name
		return p, has
	})
	for i := range out.Endpoints {
		t := &out.Endpoints[i]
		if !e.IsOwn {
			t.NodeName = ""
		}
		switch {
		case e.Withdrawn:
			t.Ready, t.Serving, t.Terminating = false, false, false
		case standby && t.Ready:
			// kube-proxy uses endpoints that are terminating and serving only if none is ready (KEP-1669).
			t.Ready, t.Serving, t.Terminating = false, true, true
		}
	}
	return out
}

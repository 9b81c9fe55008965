package services

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// SetConditions returns conditions with some set. Those whose status is unchanged keep their time.
func SetConditions(before []metav1.Condition, now ...metav1.Condition) []metav1.Condition {
	out := slices.Clone(before)
	for _, c := range now {
		c.Message = truncate(c.Message)
		meta.SetStatusCondition(&out, c)
	}
	return out
}

// truncate limits a message to what a condition may have.
func truncate(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), v1alpha1.MaxMessageLength)], "")
}

// Export is what is known of one ServiceExport.
type Export struct {
	Key Key
	// Refusal is why it is not valid, nil if it is.
	Refusal *Refusal
	Record  *v1alpha1.ServiceRecord
	// Unreachable are the endpoints that each peer does not learn, by the Peering's name. It has an entry for each peer that may
	// use the service.
	Unreachable map[string]Unreachable
	// Peers are the Peerings whose clusters may use the service if only some may: IsLimited is set then.
	Peers     []string
	IsLimited bool
	// UnknownPeers are names in the annotation for which there is no Peering that exchanges services.
	UnknownPeers []string
	// Failure is why the API server does not accept the ExportedService.
	Failure string
	// Merged is the service with the exports of all clusters.
	Merged *Merged
}

// Conditions returns the conditions of the ServiceExport.
func (e *Export) Conditions(before []metav1.Condition) []metav1.Condition {
	condition := v1beta1.NewServiceExportCondition
	if e.Refusal != nil {
		out := SetConditions(before,
			condition(v1beta1.ServiceExportConditionValid, metav1.ConditionFalse, v1beta1.ServiceExportConditionReason(e.Refusal.Reason), e.Refusal.Message),
			condition(v1beta1.ServiceExportConditionReady, metav1.ConditionFalse, v1beta1.ServiceExportReasonFailed, "the export is not valid"))
		meta.RemoveStatusCondition(&out, string(v1beta1.ServiceExportConditionConflict))
		meta.RemoveStatusCondition(&out, v1alpha1.ConditionReachable)
		return out
	}
	ready := condition(v1beta1.ServiceExportConditionReady, metav1.ConditionTrue, v1beta1.ServiceExportReasonExported, "peers can use the service")
	if e.Failure != "" {
		ready = condition(v1beta1.ServiceExportConditionReady, metav1.ConditionFalse, v1beta1.ServiceExportReasonFailed, e.Failure)
	} else if len(e.Unreachable) == 0 {
		ready = condition(v1beta1.ServiceExportConditionReady, metav1.ConditionFalse, v1beta1.ServiceExportReasonPending, "no peer exchanges services with this cluster, or none may use this one")
	} else if e.hasNothingReachable() {
		ready = condition(v1beta1.ServiceExportConditionReady, metav1.ConditionFalse, "NoReachableEndpoints", "peers can reach none of the service's endpoints")
	}
	conflict := condition(v1beta1.ServiceExportConditionConflict, metav1.ConditionFalse, v1beta1.ServiceExportReasonNoConflicts, "all clusters export the service in the same way")
	if e.Merged != nil && len(e.Merged.Conflicts) > 0 {
		reasons := v1beta1.ServiceExportConditionReason(strings.Join(e.Merged.Conflicts, ","))
		conflict = condition(v1beta1.ServiceExportConditionConflict, metav1.ConditionTrue, reasons, strings.Join(e.Merged.Differs, "; "))
	}
	return SetConditions(before,
		condition(v1beta1.ServiceExportConditionValid, metav1.ConditionTrue, v1beta1.ServiceExportReasonValid, "the service can be exported"),
		ready, conflict, e.reachable())
}

// hasNothingReachable reports whether the service has endpoints, and no peer learns any of them.
func (e *Export) hasNothingReachable() bool {
	all := count(e.Record.Slices)
	for _, left := range e.Unreachable {
		if all == 0 || left.HostNetwork+left.NotExposed < all {
			return false
		}
	}
	return true
}

// reachable returns the condition that names endpoints which peers do not learn.
func (e *Export) reachable() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReachable, Status: metav1.ConditionTrue, Reason: "AllEndpoints", Message: "peers can reach all endpoints"}
	var problems []string
	add := func(reason, message string, args ...any) {
		if c.Status = metav1.ConditionFalse; len(problems) == 0 {
			c.Reason = reason
		}
		problems = append(problems, fmt.Sprintf(message, args...))
	}
	for _, peering := range slices.Sorted(maps.Keys(e.Unreachable)) {
		left := e.Unreachable[peering]
		if left.HostNetwork > 0 {
			add("HostNetwork", "%s cannot reach %d endpoints: they are on the host network, and nodes are not open to peers", peering, left.HostNetwork)
		}
		if left.NotExposed > 0 {
			add("NotExposed", "%s cannot reach %d endpoints: they are not in the pods' ranges, and kubectl liqonet expose-host has not opened them", peering, left.NotExposed)
		}
	}
	if e.Record.Omitted > 0 {
		add("TooMany", "%d endpoints are left out: one service is exported with at most %d", e.Record.Omitted, v1alpha1.MaxRecordEndpoints)
	}
	if len(e.UnknownPeers) > 0 {
		add("UnknownPeers", "the annotation %s names peers that do not exchange services with this cluster: %s", v1alpha1.AnnotationPeers, strings.Join(e.UnknownPeers, ", "))
	}
	c.Message = strings.Join(append(problems, c.Message)[:max(len(problems), 1)], "; ")
	return c
}

// Peers returns which Peerings a ServiceExport's annotation names, and what else it names, sorted. isLimited is set if there is
// the annotation: no other peer may use the service then.
func Peers(export *v1beta1.ServiceExport, isPeering func(name string) bool) (peers, unknown []string, isLimited bool) {
	annotation, isLimited := export.Annotations[v1alpha1.AnnotationPeers]
	for name := range strings.SplitSeq(annotation, ",") {
		switch name = strings.TrimSpace(name); {
		case isPeering(name):
			peers = append(peers, name)
		case name != "":
			unknown = append(unknown, name)
		}
	}
	slices.Sort(peers)
	slices.Sort(unknown)
	return slices.Compact(peers), slices.Compact(unknown), isLimited
}

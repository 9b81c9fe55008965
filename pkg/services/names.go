// Package services decides what becomes of services that clusters export: which record describes one, what a peer learns
// of it, what of a peer's record may be used, and what several clusters' exports are together. It implements the rules of
// the Multi-Cluster Services API (KEP-1645).
//
// Every function is pure. Package feed is the protocol by which records reach the other cluster.
//
// Out of scope: reading and writing objects (agent/services, agent/feed).
package services

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Key is the namespace and name of a service, the same in all clusters.
type Key struct{ Namespace, Name string }

// String returns NAMESPACE/NAME.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// ObjectName returns the name of the ExportedService: NAMESPACE.NAME.
func (k Key) ObjectName() string { return k.Namespace + "." + k.Name }

// ReceivedName returns the name of the ReceivedService by which a peering's service is recorded.
func (k Key) ReceivedName(peering string) string { return peering + "." + k.ObjectName() }

// ParseKey parses NAMESPACE.NAME. It returns false if one of them is not a DNS label.
func ParseKey(objectName string) (k Key, isValid bool) {
	k.Namespace, k.Name, isValid = strings.Cut(objectName, ".")
	return k, isValid && len(validation.IsDNS1123Label(k.Namespace)) == 0 && len(validation.IsDNS1123Label(k.Name)) == 0
}

// ParseReceived parses the name of a ReceivedService.
func ParseReceived(objectName string) (peering string, k Key, isValid bool) {
	peering, rest, _ := strings.Cut(objectName, ".")
	k, isValid = ParseKey(rest)
	return peering, k, isValid && peering != ""
}

// DerivedPrefix is the prefix of the names of Services that stand for imported services.
const DerivedPrefix = "derived-"

// DerivedName returns the name of the Service that stands for an imported service. The reference implementation of the
// Multi-Cluster Services API computes it in the same way, so that other programs find it.
func (k Key) DerivedName() string { return DerivedPrefix + shortHash(k.String()) }

// shortHash returns ten characters that are valid in names.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))[:10]
}

// Hash returns the hash of a record, as in a ReceivedService.
func Hash(r *v1alpha1.ServiceRecord) string {
	raw, _ := json.Marshal(r) // strings, numbers and addresses always encode
	return Digest(raw)
}

// Digest returns a hash of bytes, as 26 characters.
func Digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))[:26]
}

// IsReserved reports whether no service is exported from a namespace, or imported into it, whatever anyone asks for:
// Kubernetes' own namespaces, and ours.
func IsReserved(namespace string) bool {
	return strings.HasPrefix(namespace, "kube-") || namespace == v1alpha1.Namespace
}

// isForeignKey reports whether the key of a label or annotation may be exported. Others have a meaning for Kubernetes, or
// for us.
func isForeignKey(key string) bool {
	prefix, _, has := strings.Cut(key, "/")
	if !has {
		return true
	}
	for _, domain := range []string{"kubernetes.io", "k8s.io", "liqonet.io"} {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return false
		}
	}
	return true
}

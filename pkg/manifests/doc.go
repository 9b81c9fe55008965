// Package manifests makes the Kubernetes objects that liqonet installs: the
// custom resource definitions (generated from pkg/api, embedded), the node
// agent's DaemonSet, and a gateway's Deployment, Service and permissions.
//
// Every function is pure: same input, same objects. Nothing here talks to a
// cluster, and no object holds a private key; the Secret of a gateway is created
// by pkg/peering.
package manifests

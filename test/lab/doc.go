// Package lab starts real Kubernetes clusters on one machine, for tests and for
// trying things out, without Docker, a registry or a virtual machine.
//
// Each node, and each control plane, is a set of namespaces (network, mount,
// pid, uts, ipc) with the programs of a real node: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, or containerd, kubelet and
// kube-proxy. Their programs are built once from Go modules pinned below
// modules/; runc, the CNI plugins, iptables and nftables are the
// distribution's. Pods are connected by one of several networks.
//
// The nodes of all clusters of a lab reach each other through a network
// namespace that routes between their subnets, and know nothing of each other's
// pods. No lab network leads out of the lab, and the machine has no address or
// route in one: an API server is reached through a port of 127.0.0.1.
//
// A lab is found by its name from any process: what it consists of is in its
// state directory and in the kernel, under names that contain the lab's name,
// and not in the memory of the process that started it. Down removes all of
// it, whatever the state it is found in. The only settings of the machine that a
// lab changes are the limits of inotify, where they are too low for several
// kubelets; they are put back when the last lab goes.
//
// Out of scope: control planes with several members, DNS (no CoreDNS), IPv6,
// load balancers, storage, and a registry; tests have one of their own.
package lab

// Package e2e tests the product as a user has it: the CLI's program and the
// agents' image that `make image` built, on real clusters of test/lab.
//
// All tests share one lab of four clusters: alpha and beta have equal ranges,
// gamma's pods are disjoint from alpha's, delta's overlap with a part of them.
// Every test begins and ends with clusters that know nothing of the product, and
// checks that: what a test leaves behind is its own failure, not that of the next
// one.
//
// The lab is started by a process that runs the tests in a child, so that it is
// taken down whatever happens to them: a panic, the timeout of go test, Ctrl-C.
//
// Packets are sent from inside of the pods' network namespaces by the test's own
// process: they take the way of the pods' packets, and thousands of them cost
// less than one kubectl exec.
package e2e

// Package beliefs compares what package fakeapi plays with a real kube-apiserver, its garbage collector and its
// namespace controller: what a command relies on is a row of a table, which both have to answer alike.
//
// Where the played API answers otherwise, the row has both answers and the reason, so that neither can change unseen.
package beliefs

// Package wire has names that several parts of the product have to know alike: what agents
// make in a kernel, and what commands and checks say and ask about it.
//
// Out of scope: everything that computes, and what only one package knows. It imports
// nothing of the product, and nothing that talks to a kernel.
package wire

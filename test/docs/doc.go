// Package docs tests what the documents tell the reader to type.
//
// Each block of shell commands in a document has a comment on the line before it:
//
//	<!-- run -->                the test of this package runs it, with two clusters that are played
//	<!-- run by TestX -->       another test runs these commands
//	<!-- not run: REASON -->    nobody does
//
// Of all blocks, also those that are not run, bash has to take the syntax, and every
// command of this project has to exist with its flags and arguments.
package docs

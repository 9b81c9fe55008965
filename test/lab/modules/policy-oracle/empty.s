// A function without a body (see main.go) needs an assembly file beside it.

// Command underwrite judges untrusted pull requests: it freezes them, runs pinned
// commands on them in a sealed sandbox and reports signed receipts. This package
// only parses the command line, wires the roles together and runs them.
package main

func main() {}

//go:build tools

// Package tools pins CoreDNS for the cluster harness; see ../README.md.
package tools

import _ "github.com/coredns/coredns"

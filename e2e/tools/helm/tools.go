//go:build tools

// Package tools pins Helm for the cluster harness; see ../README.md.
package tools

import _ "helm.sh/helm/v3/cmd/helm"

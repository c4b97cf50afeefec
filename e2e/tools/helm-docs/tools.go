//go:build tools

// Package tools pins helm-docs for the values table of the chart's README; see ../README.md.
package tools

import _ "github.com/norwoodj/helm-docs/cmd/helm-docs"

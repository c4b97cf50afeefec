//go:build tools

// Package tools pins helm-unittest for `make lint-chart`; see ../README.md.
package tools

import _ "github.com/helm-unittest/helm-unittest/cmd/helm-unittest"

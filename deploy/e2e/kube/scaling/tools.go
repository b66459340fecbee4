//go:build tools

// Package scaling pins KEDA. It has a go.mod of its own, because its scalers need hundreds of modules
// that nothing else here does.
package scaling

import (
	_ "github.com/kedacore/keda/v2/cmd/adapter"
	_ "github.com/kedacore/keda/v2/cmd/operator"
)

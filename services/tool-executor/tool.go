package toolexecutor

import "signalbox.dev/services/tool-executor/internal/tool"

// Aliases for main packages that add their own tools (Deps.Tools). Such tools are listed,
// enabled and run like the built-in ones. Package tool documents the contracts.
type (
	// Tool is a tool that models can call.
	Tool = tool.Tool
	// Verifier is a Tool whose effects can be looked up.
	Verifier = tool.Verifier
	// Spec is the fixed description of a tool.
	Spec = tool.Spec
	// Call is one call of a tool.
	Call = tool.Call
	// Result is the answer to a call.
	Result = tool.Result
	// Availability says whether a workspace can use a tool now.
	Availability = tool.Availability
)

// Object returns a result with v's own fields; v marshals as an object.
func Object(v any) Result { return tool.Object(v) }

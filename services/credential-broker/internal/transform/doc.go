// Package transform edits the bodies of requests and answers as a request profile asks,
// and leaves every other byte as it is: numbers of any size, padding, the order of members,
// unknown members. A body is not decoded and encoded again; a scanner finds the places, and
// an edit says what to remove and insert there.
//
// So far it knows the bodies of Anthropic's Messages API (Messages):
//
//	system          text blocks are put first; words in the caller's own are replaced
//	tools[]         the name of a custom tool is prefixed. Tools with a type of the
//	                provider's (web_search_…, bash_…, mcp_toolset) are left alone
//	messages[]      the name of a tool_use block is prefixed, unless the request declares
//	                a provider's tool of that name
//	tool_choice     name: the same
//	answers         the prefix is removed from the name of a tool_use block, in
//	                content_block_start or in content[], with the same exception
//
// The prefix is always added and removed once, so that a tool whose own name begins with it
// keeps its name. Nothing else that holds a tool's name is touched: not text, input,
// server_tool_use or mcp_tool_use.
//
// A body that is visibly not JSON, or not an object, is passed on unchanged: the provider
// explains better what is wrong with it. A member whose type differs from the API's is left
// alone. A request that needs more than maxEdits edits is refused (ErrTooMany), which bounds
// memory: an edit takes a few bytes, and the body is sent from where it is (Edits.Reader).
//
// The functions are pure. A Messages never changes and is safe for concurrent use.
package transform

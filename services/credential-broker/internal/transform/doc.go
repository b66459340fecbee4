// Package transform edits the bodies of requests and answers where a request profile
// wants them otherwise than the caller wrote them, and leaves every other byte as it
// is: numbers of any size, padding, the order of members, members that nobody knows.
// A body is not decoded and written again; a scanner finds the places, and an edit
// says what to take out and put in there.
//
// There is one form of bodies so far, that of Anthropic's Messages API (Messages):
//
//	system          text blocks are put first; words in the caller's own are replaced
//	tools[]         name of a custom tool: prefixed. Tools with a type of the
//	                provider's (web_search_…, bash_…, mcp_toolset) are left alone
//	messages[]      name of a tool_use block: prefixed, unless the request declares a
//	                provider's tool of that name
//	tool_choice     name: the same
//	answers         name of a tool_use block, in content_block_start or in content[]:
//	                the prefix is taken off, under the same exception
//
// The prefix is put on always and taken off once, so that a tool whose own name begins
// with it comes back under that name. Nothing else that holds a tool's name is touched:
// not text, input, server_tool_use, mcp_tool_use.
//
// # What is no JSON, or is something else
//
// A body in which the scanner notices that it is not JSON, or not an object, is passed
// on as it came: the provider says better what is wrong with it. A member of another
// type than the API has stays as it is. No edit makes JSON of what was none. A request
// for more edits than maxEdits is refused (ErrTooMany), which bounds the memory: some
// bytes for an edit, and none for the body, which is sent from where it is (Body).
//
// Everything here is pure functions over bytes; a Messages never changes and is safe
// for concurrent use.
package transform

// Package profile holds request profiles: data that describes the requests of one kind of
// credential. A profile names the provider's base URL, the header that carries the
// credential, the headers to set, append and remove, the protocol dialect (which decides the
// shape of our own errors), where answers report tokens and rate limits, what is changed in
// bodies (package transform), and for each route how its event stream begins, ends and fails.
//
// Profiles are YAML files. Some are shipped (Shipped); an operator's own come from a folder
// (Open) and may replace one of the same name. They are read once, when the service starts:
//
//	name: anthropic-api-key         # unique; letters, digits and dashes
//	default_for: anthropic          # the provider whose accounts use it by default
//	dialect: anthropic              # anthropic, openai, google, notion, github or mcp
//	base_url: https://api.anthropic.com
//	mounts: []                      # paths that callers write for the base URL: see Profile.Below
//	trim_base: /v1                  # removed from the end of an account's own base URL
//	auth:
//	  header: x-api-key
//	  scheme: ""                    # before the credential: Bearer
//	  params: [key]                 # query parameters that hold one as well: refused
//	headers:
//	  set:    {user-agent: "signalbox/${version}"}
//	  append: {anthropic-beta: "a,b"}   # added to the caller's list, each entry once
//	  remove: [x-stainless-*]           # a * at the end matches any rest
//	tool_prefix: mcp_               # before the names of custom tools, removed in answers
//	system:                         # like tool_prefix, on routes with body: messages
//	  first: ["You are …"]          # text blocks that come first in the system prompt
//	  words:                        # whole words to replace in the caller's own
//	    - {from: Example, to: Signalbox, case: exact}   # or any, or keep: see transform.Word
//	usage:
//	  at: [message.usage, usage]    # members of an event or answer that hold the counts
//	  input: [input_tokens]         # members of those, which are summed
//	  output: [output_tokens]
//	  cache_read: [cached_tokens]   # parts of the input that the provider's cache served
//	  cache_write: []
//	limits:                         # a limit is used up when remaining is 0, or status has a value
//	  - {remaining: x-ratelimit-remaining, reset: x-ratelimit-reset}
//	  - {status: x-quota-status, used: rejected, reset: x-quota-reset}
//	check:                          # a GET that tries a new credential
//	  path: /v1/models              # behind the first mount
//	  headers: {anthropic-version: "2023-06-01"}   # that callers send themselves
//	routes:
//	  - path: /v1/messages          # below the base URL; a * at the end matches any rest
//	    query: {beta: "true"}       # added to the URL
//	    body: messages              # Anthropic's Messages API: edited as above
//	    urls: []                    # members of a JSON answer with URLs that clients follow
//	    wait: 10m                   # for the answer's headers
//	    wait_stream: 3m             # the same if the request asks for a stream
//	    stream:
//	      events: typed             # typed: an event has a name; chat: chat completion chunks
//	      preamble: [message_start, ping]
//	      terminal: [message_stop]
//	      error: [error]
//	      usage: [message_start, message_delta]   # events that can count tokens
//
// Loading is strict: an unknown field, a wrong value or a duplicate is an error that names
// file, line and field, and so is a tool_prefix or system that no route would apply. A loaded
// Set never changes and is safe for concurrent use.
package profile

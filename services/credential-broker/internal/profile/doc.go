// Package profile holds request profiles: data that says how the requests of one
// kind of credential look. A profile names the provider's base URL, the header
// that carries the credential, the headers to set, append and remove, the
// protocol dialect (which decides the shape of our own errors), where answers count
// tokens and rate limits, what is changed in bodies (package transform), and for each
// route how its event stream begins, ends and fails.
//
// Profiles are YAML files. The product ships some (Shipped); an operator's own come
// from a folder (Open) and may replace one of the same name. They are read when the
// service starts and not again:
//
//	name: anthropic-api-key         # unique; letters, digits and dashes
//	default_for: anthropic          # the provider whose accounts use it when they name none
//	dialect: anthropic              # anthropic, openai, google, notion or github
//	base_url: https://api.anthropic.com
//	mounts: []                      # paths that callers put before for the base URL: see Profile.Below
//	trim_base: /v1                  # cut from the end of an account's own base URL
//	auth:
//	  header: x-api-key
//	  scheme: ""                    # put before the credential: Bearer
//	  params: [key]                 # of a URL's query, where it takes one too: refused
//	headers:
//	  set:    {user-agent: "signalbox/${version}"}
//	  append: {anthropic-beta: "a,b"}   # added to the caller's list, each entry once
//	  remove: [x-stainless-*]           # a * at the end stands for any rest
//	tool_prefix: mcp_               # before the names of custom tools, off again in answers
//	system:                         # in routes with body: messages, as is tool_prefix
//	  first: ["You are …"]          # text blocks that come first in the system prompt
//	  words:                        # whole words that are replaced in the caller's own
//	    - {from: Example, to: Signalbox, case: exact}   # or any, or keep: see transform.Word
//	usage:
//	  at: [message.usage, usage]    # members of an event or answer in which the counts are
//	  input: [input_tokens]         # members of those, which are added up
//	  output: [output_tokens]
//	  cache_read: [cached_tokens]   # members that count parts of the input: of the
//	  cache_write: []               # provider's cache, which has prices of its own
//	limits:                         # a limit is used up when remaining says 0, or status a word
//	  - {remaining: x-ratelimit-remaining, reset: x-ratelimit-reset}
//	  - {status: x-quota-status, used: rejected, reset: x-quota-reset}
//	check:                          # what a credential is tried with when it is added: a GET
//	  path: /v1/models              # behind the first mount, as callers write it
//	  headers: {anthropic-version: "2023-06-01"}   # that callers send by themselves
//	routes:
//	  - path: /v1/messages          # below the base URL; a * at the end stands for any rest
//	    query: {beta: "true"}       # added to the URL
//	    body: messages              # Anthropic's Messages API: may be changed as said above
//	    urls: []                    # members of a JSON answer with URLs that clients follow
//	    wait: 10m                   # for the answer's headers
//	    wait_stream: 3m             # the same when the request asks for a stream
//	    stream:
//	      events: typed             # typed: an event has a name; chat: chunks of a chat completion
//	      preamble: [message_start, ping]
//	      terminal: [message_stop]
//	      error: [error]
//	      usage: [message_start, message_delta]   # events that can count tokens
//
// Loading is strict: an unknown field, a wrong value or a duplicate is an error
// that names file, line and field. Only bodies of Anthropic's Messages API are changed;
// a prefix, blocks or words in a profile without such a route are an error, and not
// something that quietly does not happen. A loaded Set never changes and is safe for
// concurrent use.
package profile

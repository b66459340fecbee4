// Package profile holds request profiles: data that says how the requests of one
// kind of credential look. A profile names the provider's base URL, the header
// that carries the credential, the headers to set, append and remove, the
// protocol dialect (which decides the shape of our own errors), and for each
// route how its event stream begins, ends and fails.
//
// Profiles are YAML files. The product ships some (Shipped); an operator's own
// come from another fs.FS and may replace one of the same name:
//
//	name: anthropic-api-key         # unique; letters, digits and dashes
//	default_for: anthropic          # the provider whose accounts use it when they name none
//	dialect: anthropic              # anthropic or openai
//	base_url: https://api.anthropic.com
//	mounts: []                      # paths that callers put before; each stands for the base URL
//	trim_base: /v1                  # cut from the end of an account's own base URL
//	auth:
//	  header: x-api-key
//	  scheme: ""                    # put before the credential: Bearer
//	headers:
//	  set:    {user-agent: "signalbox/${version}"}
//	  append: {anthropic-beta: "a,b"}   # added to the caller's list, each entry once
//	  remove: [x-stainless-*]           # a * at the end stands for any rest
//	routes:
//	  - path: /v1/messages          # below the base URL; a * at the end stands for any rest
//	    wait: 10m                   # for the answer's headers
//	    wait_stream: 3m             # the same when the request asks for a stream
//	    stream:
//	      events: typed             # typed: an event has a name; chat: chunks of a chat completion
//	      preamble: [message_start, ping]
//	      terminal: [message_stop]
//	      error: [error]
//
// Loading is strict: an unknown field, a wrong value or a duplicate is an error
// that names file, line and field. A loaded Set never changes and is safe for
// concurrent use.
package profile

// Package modelmsg reads and writes message content in the form it is stored and
// served in: the content of the AI SDK's ModelMessage, exactly, so that a history
// goes into that SDK's own schema without change.
//
//   - user and system: a JSON string, or an array of text and file parts. A file's
//     data is a plain string, base64 or an https URL, never a data: URL.
//   - assistant: an array of text, reasoning, tool-call parts, and the tool-result
//     parts of tools that the provider itself ran.
//   - tool: an array of tool-result parts, one message per step, in call order.
//
// Keys are always written in the same order, nothing is ever null where the schema
// wants it absent, and strings hold neither lone surrogates nor NUL, so that
// content can live in any Postgres JSON column. Numbers and the spelling of tool
// input stay as the model wrote them.
//
// What the provider needs back that has no place in a ModelMessage (encrypted
// search results, unknown blocks) is not here: it travels beside the content as
// raw blocks, see package llm.
package modelmsg

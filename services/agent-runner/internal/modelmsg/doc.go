// Package modelmsg reads and writes message content in the form in which it is stored and
// served: exactly the content of the AI SDK's ModelMessage, so that a history satisfies that
// SDK's own schema.
//
//   - user and system: a JSON string, or an array of text and file parts. A file's
//     data is a plain string, base64 or an https URL, never a data: URL.
//   - assistant: an array of text, reasoning, tool-call parts, and the tool-result
//     parts of tools that the provider itself ran.
//   - tool: an array of tool-result parts, one message per step, in call order.
//
// Keys are always written in the same order, absent fields are never null, and strings have
// neither lone surrogates nor NUL, so that any Postgres JSON column can store the content.
// Numbers and the spelling of tool input stay as the model wrote them.
//
// Data that the provider needs back and that has no place in a ModelMessage, such as
// encrypted search results and unknown blocks, is stored beside the content as raw blocks;
// see package llm.
package modelmsg

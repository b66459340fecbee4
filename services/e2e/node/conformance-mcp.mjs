// conformance-mcp: @modelcontextprotocol/conformance, with its command line, in a Node that is
// new enough for it.
import { needNewerNode } from './lib/node.mjs';

await needNewerNode('the MCP conformance suite');
await import('@modelcontextprotocol/conformance/dist/index.js');

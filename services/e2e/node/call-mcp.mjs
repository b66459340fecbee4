// call-mcp 1|2 URL TOKEN: uses an MCP server with that major version of the official SDK, with
// the token alone. It creates a document, and prints {tools, called, listed, read}: the names of
// the tools, the call's result, the list of resources, and the first of them.
import { EXIT, Failure, run } from './lib/exit.mjs';

const SDKS = {
  1: async () => ({ ...(await import('@modelcontextprotocol/sdk/client/index.js')), ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')) }),
  2: () => import('@modelcontextprotocol/client'),
};

await run(async () => {
  const [version, url, token, ...more] = process.argv.slice(2);
  if (!(version in SDKS) || !token || more.length > 0) throw new Failure(EXIT.usage, 'usage: call-mcp 1|2 URL TOKEN');
  const { Client, StreamableHTTPClientTransport } = await SDKS[version]();
  const client = new Client({ name: 'call-mcp', version: '1' });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } }));
  const { tools } = await client.listTools();
  const called = await client.callTool({ name: 'create_document', arguments: { name: 'Minutes', content: 'Tea at four.' } });
  const { resources } = await client.listResources();
  const { contents } = await client.readResource({ uri: resources[0].uri });
  process.stdout.write(JSON.stringify({ tools: tools.map((t) => t.name), called, listed: resources, read: contents[0] }));
  await client.close();
});

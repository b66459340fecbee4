// conformance-client: the client that the conformance suite starts for each scenario, with the
// URL of a server. It has the test do what the scenario is about, at DRIVER_URL.
const { DRIVER_URL, MCP_CONFORMANCE_SCENARIO, MCP_CONFORMANCE_CONTEXT } = process.env;

const res = await fetch(DRIVER_URL, {
  method: 'POST',
  body: JSON.stringify({ url: process.argv[2], scenario: MCP_CONFORMANCE_SCENARIO, context: JSON.parse(MCP_CONFORMANCE_CONTEXT ?? '{}') }),
});
const text = await res.text();
if (!res.ok) {
  console.error(text);
  process.exit(1);
}

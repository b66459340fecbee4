// use-ag-ui GATEWAY: runs an agent through the gateway with HttpAgent of @ag-ui/client. stdin has {"token","workspace"}. It
// fails at the first surprise, and prints one line for each thing it did.
import assert from 'node:assert/strict';
import { text } from 'node:stream/consumers';
import { HttpAgent } from '@ag-ui/client';
import { EXIT, Failure, run } from './lib/exit.mjs';

await run(async () => {
  const [gateway] = process.argv.slice(2);
  if (!URL.canParse(gateway)) throw new Failure(EXIT.usage, 'usage: use-ag-ui GATEWAY');
  const { token, workspace } = JSON.parse(await text(process.stdin));
  const headers = { authorization: `Bearer ${token}`, 'x-workspace-id': workspace };
  const did = (what) => process.stdout.write(`${what}\n`);
  const user = (content) => ({ id: crypto.randomUUID(), role: 'user', content });
  const newAgent = (initialMessages = []) => new HttpAgent({ url: `${gateway}/api/ag-ui`, headers, threadId: `thread-${crypto.randomUUID()}`, initialMessages });
  /** Runs the agent, and returns its events. */
  const go = async (agent, parameters = {}) => {
    const events = [];
    await agent.runAgent(parameters, { onEvent: ({ event }) => void events.push(event) });
    return events;
  };
  const ask = (agent, content, parameters) => {
    agent.addMessage(user(content));
    return go(agent, parameters);
  };
  const end = (events) => events.at(-1);
  const post = (input) => fetch(`${gateway}/api/ag-ui`, { method: 'POST', headers: { ...headers, 'content-type': 'application/json' }, body: JSON.stringify(input) });

  // Messages and tool calls, after a history of the client's.
  const agent = newAgent([user('I like tea.'), { id: 'a1', role: 'assistant', content: 'Noted.' }]);
  let events = await ask(agent, 'create a document about nettle tea', { context: [{ description: 'Mood', value: 'good' }] });
  assert.equal(events[0].type, 'RUN_STARTED');
  assert.deepEqual(end(events).outcome, { type: 'success' });
  assert.ok(end(events).usage[0].totalTokens > 0);
  assert.deepEqual(agent.messages.map((m) => m.role), ['user', 'assistant', 'user', 'reasoning', 'assistant', 'tool', 'assistant']);
  const [, , , thought, called, result, said] = agent.messages;
  assert.ok(thought.content);
  assert.equal(called.toolCalls[0].function.name, 'doc_create');
  assert.ok(JSON.parse(called.toolCalls[0].function.arguments).name);
  assert.ok(JSON.parse(result.content).id);
  assert.match(said.content, /^Done\./);
  did('runs, with reasoning and a tool');

  // Approvals: one refused, one given.
  for (const [status, approved] of [['cancelled'], ['resolved', true]]) {
    events = await ask(agent, 'delete it');
    const [interrupt] = agent.pendingInterrupts;
    assert.equal(end(events).outcome.type, 'interrupt', JSON.stringify(end(events)));
    assert.equal(agent.pendingInterrupts.length, 1);
    await assert.rejects(ask(agent, 'hello')); // the client demands an answer first
    agent.setMessages(agent.messages.slice(0, -1));
    const resume = [{ interruptId: interrupt.id, status, ...(approved && { payload: { approved } }) }];
    events = await go(agent, { resume });
    assert.deepEqual(end(events).outcome, { type: 'success' });
    // As if the response had been lost: the same answer again, and another one.
    const again = await post({ threadId: agent.threadId, runId: 'again', messages: [], resume });
    assert.equal(again.status, 200);
    assert.match(await again.text(), /TOOL_CALL_RESULT.*RUN_FINISHED/s);
    const other = approved ? { status: 'cancelled' } : { status: 'resolved', payload: { approved: true } };
    const refused = await post({ threadId: agent.threadId, runId: 'other', messages: [], resume: [{ interruptId: interrupt.id, ...other }] });
    assert.equal(refused.status, 409, await refused.text());
    const result = agent.messages.find((m) => m.role === 'tool' && m.toolCallId === interrupt.toolCallId);
    assert.match(result.content, approved ? /success|true/ : /refused/);
  }
  did('asks for approval');

  // A tool of the client.
  const tools = [{ name: 'get_location', description: 'Where the user is.', parameters: { type: 'object', properties: { exact: { type: 'boolean' } } } }];
  const located = newAgent();
  events = await ask(located, 'call the tool get_location with {"exact":true}', { tools });
  const [call] = end(events).outcome.pendingToolCallIds;
  assert.deepEqual(JSON.parse(located.messages.at(-1).toolCalls[0].function.arguments), { exact: true });
  located.addMessage({ id: crypto.randomUUID(), role: 'tool', toolCallId: call, content: 'Paris' });
  const messages = structuredClone(located.messages);
  events = await go(located, { tools });
  assert.match(located.messages.at(-1).content, /Paris/);
  assert.equal(located.messages.filter((m) => m.role === 'tool').length, 1);
  const repeated = await post({ threadId: located.threadId, runId: 'again', messages, tools });
  assert.match(await repeated.text(), /Paris.*RUN_FINISHED/s);
  did('runs a tool of the client');

  // Cancelled by somebody else, and by the client, whose run then stops.
  const session = async (id) => (await fetch(`${gateway}/api/sessions/${id}`, { headers })).json();
  const long = newAgent();
  const saying = new Promise((said) => (long.subscribe({ onTextMessageContentEvent: said })));
  let started;
  const fetching = new Promise((r) => (started = r));
  long.fetch = async (url, init) => {
    const response = await fetch(url, init);
    started(response.headers.get('x-session-id'));
    return response;
  };
  const running = ask(long, 'count to 1000');
  const id = await fetching;
  await saying;
  await fetch(`${gateway}/api/sessions/${id}/cancel`, { method: 'POST', headers });
  assert.deepEqual(end(await running).outcome, { type: 'cancelled' });
  const left = ask(long, 'count to 1000').catch(() => {});
  while (!(await session(id)).active_run) await new Promise((r) => setTimeout(r, 50));
  long.abortRun();
  await left;
  while ((await session(id)).active_run) await new Promise((r) => setTimeout(r, 50));
  did('stops');

  // Errors, before and in the stream.
  await assert.rejects(go(newAgent()), /messages/);
  const failed = await ask(newAgent(), 'simulate a bad key').catch((error) => [{ type: 'RUN_ERROR', message: String(error) }]);
  assert.equal(end(failed).type, 'RUN_ERROR', JSON.stringify(failed));
  did('fails');
});

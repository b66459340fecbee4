// use-openai GATEWAY KEY: chats through the gateway with the npm package openai and an API key. It fails at the first
// surprise, and prints one line for each thing it did.
import assert from 'node:assert/strict';
import OpenAI from 'openai7';
import { EXIT, Failure, run } from './lib/exit.mjs';

await run(async () => {
  const [gateway, apiKey] = process.argv.slice(2);
  if (!URL.canParse(gateway) || !apiKey) throw new Failure(EXIT.usage, 'usage: use-openai GATEWAY KEY');
  const client = new OpenAI({ baseURL: `${gateway}/v1`, apiKey, maxRetries: 0 });
  const did = (what) => process.stdout.write(`${what}\n`);
  const model = 'workspace';
  const user = (content) => ({ role: 'user', content });
  const fails = async (status, type, request) => {
    const error = await request.then(() => assert.fail('no error'), (e) => e);
    assert.equal(error.status, status, String(error));
    assert.equal(error.type, type, String(error));
    assert.ok(error.message.length > 10);
    return error;
  };

  // Models.
  const models = (await client.models.list()).data.map((m) => m.id);
  assert.ok(models.includes(model) && models.includes('assistant'), String(models));
  assert.equal((await client.models.retrieve(model)).id, model);
  did('lists models');

  // Errors.
  await fails(404, 'invalid_request_error', client.chat.completions.create({ model: 'gpt-9', messages: [user('hi')] }));
  await fails(400, 'invalid_request_error', client.chat.completions.create({ model, messages: [] }));
  await fails(400, 'invalid_request_error', client.chat.completions.create({ model, messages: [user('hi')], n: 2 }));
  await fails(400, 'invalid_request_error', client.chat.completions.create({ model, messages: 7 }));
  await fails(404, 'invalid_request_error', client.post('/nothing', { body: {} }));
  await fails(401, 'authentication_error', new OpenAI({ baseURL: `${gateway}/v1`, apiKey: 'sb_wrong', maxRetries: 0 }).models.list());
  did('gets errors');

  // A chat completion, whole and in pieces.
  const question = [{ role: 'system', content: 'Be brief.' }, user('I like tea.'), { role: 'assistant', content: 'Noted.' }, user('what time is it?')];
  const whole = await client.chat.completions.create({ model, messages: question });
  assert.match(whole.choices[0].message.content, /^It is /);
  assert.equal(whole.choices[0].finish_reason, 'stop');
  assert.ok(whole.usage.total_tokens > 0);
  const runner = client.chat.completions.stream({ model, messages: question, stream_options: { include_usage: true } });
  let deltas = '';
  runner.on('content', (delta) => (deltas += delta));
  const streamed = await runner.finalChatCompletion();
  assert.match(streamed.choices[0].message.content, /^It is /);
  assert.equal(deltas, streamed.choices[0].message.content);
  assert.ok(streamed.usage.total_tokens > 0);
  did('completes chats');

  // A picture, and a session that the client names.
  const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } };
  const { data: seen, response } = await client.chat.completions.create({ model, messages: [user([{ type: 'text', text: 'what is this?' }, image])] }).withResponse();
  assert.ok(seen.choices[0].message.content);
  const session = response.headers.get('x-session-id');
  await client.chat.completions.create({ model, messages: [user('what time is it?')] }, { headers: { 'x-session-id': session } });
  const sessionOf = async (response) => (await fetch(`${gateway}/api/sessions/${response.headers.get('x-session-id')}`, { headers: { authorization: `Bearer ${apiKey}` } })).json();
  const stored = await sessionOf(response);
  assert.deepEqual(stored.messages.map((m) => m.role), ['user', 'assistant', 'user', 'assistant', 'tool', 'assistant']);
  assert.equal(stored.messages[0].content[1].mediaType, 'image/png');
  did('sends pictures');

  // The same key is the same run.
  const again = { headers: { 'idempotency-key': crypto.randomUUID() } };
  const ids = await Promise.all([1, 2].map(() => client.chat.completions.create({ model, messages: [user('what time is it?')] }, again).then((c) => c.id)));
  assert.equal(ids[0], ids[1]);
  did('repeats a request');

  // A tool of the client, by hand and with the runner of the package.
  const parameters = { type: 'object', properties: { exact: { type: 'boolean' } } };
  const tools = [{ type: 'function', function: { name: 'get_location', description: 'Where the user is.', parameters } }];
  const where = user('call the tool get_location with {"exact":true}');
  const asked = await client.chat.completions.create({ model, messages: [where], tools });
  const [call] = asked.choices[0].message.tool_calls;
  assert.equal(asked.choices[0].finish_reason, 'tool_calls');
  assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ['get_location', { exact: true }]);
  const messages = [where, asked.choices[0].message, { role: 'tool', tool_call_id: call.id, content: 'Paris' }];
  const told = await client.chat.completions.create({ model, messages, tools });
  assert.match(told.choices[0].message.content, /Paris/);
  const more = await client.chat.completions.create({ model, messages: [...messages, told.choices[0].message, user('what time is it?')] });
  assert.equal(more.choices[0].finish_reason, 'stop');
  const ran = client.chat.completions.runTools({
    model,
    stream: true,
    messages: [where],
    tools: [{ type: 'function', function: { name: 'get_location', parameters, parse: JSON.parse, function: ({ exact }) => `Oslo ${exact}` } }],
  });
  assert.match(await ran.finalContent(), /Oslo true/);
  await fails(400, 'invalid_request_error', client.chat.completions.create({ model, messages: [where, { role: 'assistant', tool_calls: [call] }, { role: 'tool', tool_call_id: 'call_x', content: '' }] }));
  did('runs tools');

  // A format, which the simulator does not know.
  const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false };
  const response_format = { type: 'json_schema', json_schema: { name: 'place', schema, strict: true } };
  const unfit = await fails(503, 'server_error', client.chat.completions.create({ model, messages: [user('where is the tower?')], response_format }));
  assert.equal(unfit.code, 'response_format');
  did('asks for a format');

  // A client that leaves.
  const long = await client.chat.completions.create({ model, messages: [user('count to 1000')], stream: true }).withResponse();
  for await (const chunk of long.data) if (chunk.choices[0]?.delta.content) break;
  const left = `${gateway}/api/sessions/${long.response.headers.get('x-session-id')}`;
  for (;;) {
    const { active_run: active } = await (await fetch(left, { headers: { authorization: `Bearer ${apiKey}` } })).json();
    if (!active) break;
    await new Promise((r) => setTimeout(r, 50));
  }
  did('stops when it leaves');

  await responses({ client, model, did, fails, where, parameters, sessionOf });
});

async function responses({ client, model, did, fails, where, parameters, sessionOf }) {
  // Whole, streamed, and continued.
  const first = await client.responses.create({ model, input: 'what time is it?', instructions: 'Be brief.' });
  assert.match(first.output_text, /^It is /);
  assert.equal(first.status, 'completed');
  assert.deepEqual(first.output.map((i) => i.type), ['mcp_call', 'message']);
  assert.deepEqual((await client.responses.retrieve(first.id)).output, first.output);
  const stream = client.responses.stream({ model, input: 'what time is it?', previous_response_id: first.id });
  let text = '';
  stream.on('response.output_text.delta', (e) => (text += e.delta));
  const second = await stream.finalResponse();
  assert.equal(text, second.output_text);
  // An older response has a second continuation, in a copy of the session. Repeated, it is the same.
  const older = () => client.responses.create({ model, input: 'hello', previous_response_id: first.id }, { headers: { 'idempotency-key': 'older' } }).withResponse();
  const [{ data: aside, response }, { data: repeated }] = [await older(), await older()];
  assert.equal(repeated.id, aside.id);
  const copy = await sessionOf(response);
  assert.deepEqual(copy.messages.filter((m) => m.role === 'user').map((m) => m.content), ['what time is it?', 'hello']);
  // So has one with other instructions: a session keeps its own.
  const { response: otherwise } = await client.responses.create({ model, input: 'hello', instructions: 'Be long.', previous_response_id: aside.id }).withResponse();
  assert.notEqual(otherwise.headers.get('x-session-id'), response.headers.get('x-session-id'));
  assert.equal((await sessionOf(response)).messages.length, copy.messages.length);
  // A developer's message stays.
  const taught = await client.responses.create({ model, input: [{ role: 'developer', content: 'Rhyme.' }, { role: 'user', content: 'hello' }], instructions: 'Be brief.' });
  const { response: later } = await client.responses.create({ model, input: 'hello', instructions: 'Be long.', previous_response_id: taught.id }).withResponse();
  assert.match((await sessionOf(later)).session.system_prompt, /^Be long\.\n\n.*\nRhyme\.\n/);
  await fails(404, 'invalid_request_error', client.responses.retrieve('resp_1'));
  did('responds');

  // Function calls.
  const tools = [{ type: 'function', name: 'get_location', parameters, strict: false }];
  const asked = await client.responses.create({ model, input: where.content, tools });
  const call = asked.output.find((i) => i.type === 'function_call');
  assert.deepEqual([call.name, JSON.parse(call.arguments)], ['get_location', { exact: true }]);
  const output = [{ type: 'function_call_output', call_id: call.call_id, output: 'Paris' }];
  const rhyme = { role: 'developer', content: 'Rhyme.' };
  await fails(400, 'invalid_request_error', client.responses.create({ model, input: [rhyme, ...output], previous_response_id: asked.id, tools }));
  await fails(400, 'invalid_request_error', client.responses.create({ model, input: output, instructions: 'Be brief.', previous_response_id: asked.id, tools }));
  const told = await client.responses.create({ model, input: output, previous_response_id: asked.id, tools });
  assert.match(told.output_text, /Paris/);
  assert.equal(told.previous_response_id, asked.id);
  assert.deepEqual((await client.responses.retrieve(asked.id)).output, asked.output);
  did('calls functions');

  // In the background, cut after every event and resumed.
  const all = [];
  const events = await client.responses.create({ model, input: 'what time is it?', background: true, stream: true });
  for await (const e of events) all.push(e);
  assert.deepEqual(all.map((e) => e.sequence_number), all.map((_, k) => k));
  assert.equal(all.at(-1).type, 'response.completed');
  const from = async (id, k) => {
    const rest = [];
    const options = { stream: true, ...(k < 0 ? {} : { starting_after: k }) };
    for await (const e of await client.responses.retrieve(id, options)) rest.push(e);
    return rest;
  };
  const after = Array.from({ length: all.length + 1 }, (_, k) => k - 1);
  for (let i = 0; i < after.length; i += 8)
    await Promise.all(after.slice(i, i + 8).map(async (k) => assert.deepEqual(await from(all[0].response.id, k), all.slice(k + 1))));
  await Promise.all(
    [0, 3, 5].map(async (k) => {
      const cut = [];
      for await (const e of await client.responses.create({ model, input: 'what time is it?', background: true, stream: true })) if (cut.push(e) > k) break;
      const { id } = cut[0].response;
      cut.push(...(await from(id, k)));
      assert.deepEqual(cut, await from(id, -1));
      assert.equal(cut.at(-1).type, 'response.completed');
    }),
  );
  did('resumes after every event');

  // Cancelled, and polled.
  const long = await client.responses.create({ model, input: 'count to 1000', background: true });
  assert.ok(['queued', 'in_progress'].includes(long.status), long.status);
  assert.equal((await client.responses.cancel(long.id)).status, 'cancelled');
  assert.equal((await client.responses.retrieve(long.id)).status, 'cancelled');
  let polled = await client.responses.create({ model, input: 'what time is it?', background: true });
  while (polled.status === 'queued' || polled.status === 'in_progress') polled = await client.responses.retrieve(polled.id);
  assert.equal(polled.status, 'completed');
  did('works in the background');
}

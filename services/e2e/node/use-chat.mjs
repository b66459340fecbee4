// use-chat 5|6|7 GATEWAY: chats through the gateway with useChat of that version of the AI SDK. stdin has
// {"token","workspace"}. It fails at the first surprise, and prints one line for each thing it did.
import assert from 'node:assert/strict';
import { text } from 'node:stream/consumers';
import { EXIT, Failure, run } from './lib/exit.mjs';
import { needNewerNode } from './lib/node.mjs';

await run(async () => {
  const [version, gateway] = process.argv.slice(2);
  if (!['5', '6', '7'].includes(version) || !URL.canParse(gateway)) throw new Failure(EXIT.usage, 'usage: use-chat 5|6|7 GATEWAY');
  await needNewerNode('useChat');
  const { token, workspace } = JSON.parse(await text(process.stdin));
  const headers = { authorization: `Bearer ${token}`, 'x-workspace-id': workspace, 'x-ai-sdk-version': version };
  const { cutAfter, mount, sdk } = await import('./lib/use-chat.mjs');
  const ai = await sdk(version);
  const api = `${gateway}/api/chat`;
  const did = (what) => process.stdout.write(`${what}\n`);
  const idle = ({ status, messages }) => (status === 'ready' || status === 'error') && messages.length > 0;
  const newChat = (name) => `${name}-${crypto.randomUUID()}`;
  const ask = async (page, what) => {
    await page.chat.sendMessage(what);
    return page.until(idle);
  };
  const call = async (path, options) => {
    const response = await fetch(gateway + path, { headers, ...options });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return response.json();
  };

  // The session of a chat, from the header of its first answer.
  const sessions = new Map();
  const noting = (id, inner = fetch) => async (input, init) => {
    const response = await inner(input, init);
    if (response.headers.get('x-session-id')) sessions.set(id, response.headers.get('x-session-id'));
    return response;
  };
  const chat = (id, more = {}, inner) =>
    mount(ai.useChat, { id, transport: new ai.DefaultChatTransport({ api, headers, fetch: noting(id, inner) }), ...more });
  const stored = async (id) => (await call(`/api/sessions/${sessions.get(id)}?format=ui`)).messages;

  /** What a reader sees of a message. */
  const shown = (message) =>
    message.parts
      .filter((p) => p.type !== 'step-start')
      .map(({ type, text, state, input, output, errorText }) => JSON.parse(JSON.stringify({ type, text, state, input, output, errorText })));
  const question = 'create a document about nettle tea';

  // The whole answer, and what a reload gives.
  const first = newChat('whole');
  let page = chat(first);
  const whole = await ask(page, { text: question });
  assert.equal(whole.status, 'ready', String(whole.error));
  assert.equal(whole.messages.length, 2);
  const tool = whole.messages[1].parts.find((p) => p.type === 'tool-doc_create');
  assert.equal(tool.state, 'output-available');
  assert.ok(tool.output.id);
  assert.ok(whole.messages[1].parts.some((p) => p.type === 'text' && p.state === 'done'));
  assert.equal(whole.messages[1].metadata.simulated, true);
  const reloaded = await stored(first);
  assert.equal(reloaded[1].id, whole.messages[1].id);
  assert.deepEqual(shown(reloaded[1]), shown(whole.messages[1]));
  did('streams');

  // Nothing to resume.
  const nothing = await fetch(`${api}/${first}/stream`, { headers });
  assert.equal(nothing.status, 204);

  // A second message of the same chat, with an attachment, from a page that has loaded the history.
  page.unmount();
  page = chat(first, { messages: reloaded });
  const file = { type: 'file', mediaType: 'image/png', url: 'data:image/png;base64,iVBORw0KGgo=', filename: 'a.png' };
  const more = await ask(page, { text: 'what is this?', files: [file] });
  assert.equal(more.status, 'ready', String(more.error));
  const alone = await ask(page, { text: '', files: [file] });
  assert.equal(alone.status, 'ready', String(alone.error));
  const history = await stored(first);
  assert.deepEqual(history.map((m) => m.role), ['user', 'assistant', 'user', 'assistant', 'user', 'assistant']);
  assert.equal(history[2].parts.find((p) => p.type === 'file').url, file.url);
  assert.deepEqual(history[4].parts.map((p) => p.url), [file.url]);
  page.unmount();
  did('attaches files');

  // Cut after every chunk. Version 7 resumes in the page, at the run that the message names. Versions 5 and 6 would
  // append a replay to what they have (the useChat of 6 hides from its Chat that the transport replays): their page is
  // loaded again.
  const short = 'what time is it?';
  const isWhole = async (id, { status, error, messages }, k) => {
    assert.equal(status, 'ready', String(error));
    assert.equal(messages.length, 2, `cut after chunk ${k}: ${JSON.stringify(messages)}`);
    assert.deepEqual(shown(messages[1]), shown((await stored(id))[1]), `cut after chunk ${k}`);
    assert.deepEqual(messages[1].parts.map((p) => p.type), ['step-start', 'tool-get_current_datetime', 'step-start', 'text'], `cut after chunk ${k}`);
  };
  const cutAt = async (k) => {
    const id = newChat('cut');
    let cut;
    const transport = new ai.DefaultChatTransport({
      api,
      headers,
      fetch: noting(id, cutAfter(k)),
      prepareReconnectToStreamRequest: () => ({ api: `${api}/run_${cut.chat.messages.at(-1).id}/stream`, headers }),
    });
    cut = mount(ai.useChat, { id, transport });
    const now = await ask(cut, { text: short });
    if (now.messages.at(-1).role === 'user') {
      await cut.chat.sendMessage(); // nothing came: the same message again is the same run
    } else if (version !== '7') {
      cut.unmount();
      const { messages, active_run: run } = await call(`/api/sessions/${sessions.get(id)}?format=ui`);
      const prepareReconnectToStreamRequest = ({ id }) => ({ api: `${api}/${run ? `run_${run.id}` : id}/stream`, headers });
      cut = mount(ai.useChat, { id, messages, resume: true, transport: new ai.DefaultChatTransport({ api, headers, prepareReconnectToStreamRequest }) });
      await cut.until(({ status, messages }) => status === 'ready' && (!run || messages[1]?.metadata?.finishReason));
    } else {
      await cut.chat.resumeStream();
    }
    await isWhole(id, await cut.until(idle), k);
    cut.unmount();
  };
  const everyCut = async (one) => {
    const response = await ask(chat(newChat('uncut')), { text: short }).then(({ messages }) => fetch(`${api}/run_${messages[1].id}/stream`, { headers }));
    const count = (await response.text()).split('\n\n').length - 2; // without [DONE]
    const cuts = Array.from({ length: count + 1 }, (_, k) => k);
    for (let i = 0; i < cuts.length; i += 8) await Promise.all(cuts.slice(i, i + 8).map(one)); // as many as a workspace may run
  };
  await everyCut(cutAt);
  did('is whole after every cut');

  if (version === '7') {
    const error = console.error;
    console.error = () => {}; // it reports each cut
    await everyCut(async (k) => {
      const id = newChat('workflow');
      const body = ({ id, messages }) => ({ body: { id, messages }, headers });
      const transport = new ai.WorkflowChatTransport({
        api,
        fetch: noting(id, cutAfter(k)),
        prepareSendMessagesRequest: body,
        prepareReconnectToStreamRequest: ({ api }) => ({ api, headers }),
      });
      const cut = mount(ai.useChat, { id, transport });
      await isWhole(id, await ask(cut, { text: short }), k);
      cut.unmount();
    });
    console.error = error;
    did('is whole after every cut, with WorkflowChatTransport');

    // The tail of a stream, which is cut in turn.
    const { messages: [, told] } = await ask(chat(newChat('tail')), { text: short });
    const read = async (initialStartIndex, inner) => {
      const transport = new ai.WorkflowChatTransport({ api, fetch: inner, initialStartIndex, prepareReconnectToStreamRequest: ({ api }) => ({ api, headers }) });
      return Array.fromAsync(await transport.reconnectToStream({ chatId: `run_${told.id}` }));
    };
    const all = await read(0);
    const from = all.findIndex((c) => c.type === 'text-start');
    console.error = () => {};
    assert.deepEqual(await read(from - all.length, cutAfter(2, 'GET')), all.slice(from));
    console.error = error;
    did('reads the tail of a stream');

    // A message that another page sends joins the answer, before its next step.
    const steered = newChat('steered');
    const wanted = [{ name: 'get_location', input_schema: { type: 'object' } }];
    const watching = mount(ai.useChat, {
      id: steered,
      transport: new ai.DefaultChatTransport({ api, headers, body: { client_tools: wanted } }),
      sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithToolCalls,
    });
    await ask(watching, { text: 'call the tool get_location with {}' });
    const steering = mount(ai.useChat, { id: steered, transport: new ai.DefaultChatTransport({ api, headers, body: { mode: 'steer' } }) });
    await ask(steering, { text: 'hello' });
    const { toolCallId } = watching.chat.messages[1].parts.find((p) => p.type === 'tool-get_location');
    watching.chat.addToolOutput({ tool: 'get_location', toolCallId, output: { city: 'Paris' } });
    const { messages } = await watching.until(({ status, messages }) => status === 'ready' && messages[1].metadata?.finishReason);
    const joined = messages[1].parts.findIndex((p) => p.type === 'steering-message');
    assert.deepEqual(messages[1].parts[joined]?.parts, [{ type: 'text', text: 'hello' }], JSON.stringify(messages[1].parts));
    assert.ok(messages[1].parts.slice(joined).some((p) => p.type === 'text' && p.state === 'done'));
    watching.unmount();
    steering.unmount();
    did('steers an answer');
  }

  // A tool that the page runs.
  const located = newChat('tool');
  const client_tools = [{ name: 'get_location', input_schema: { type: 'object', properties: { exact: { type: 'boolean' } } } }];
  page = mount(ai.useChat, {
    id: located,
    transport: new ai.DefaultChatTransport({ api, headers, body: { client_tools }, fetch: noting(located) }),
    sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithToolCalls,
    onToolCall({ toolCall: { toolName, toolCallId, input } }) {
      if (toolName !== 'get_location') return;
      assert.deepEqual(input, { exact: true });
      const add = page.chat.addToolOutput ?? page.chat.addToolResult; // not awaited
      add({ tool: toolName, toolCallId, output: { city: 'Paris' } });
    },
  });
  await page.chat.sendMessage({ text: 'call the tool get_location with {"exact":true}' });
  const answer = await page.until(({ status, messages }) => status === 'ready' && messages.at(-1).metadata?.finishReason);
  assert.equal(answer.messages.length, 2);
  assert.deepEqual(answer.messages[1].parts.find((p) => p.type === 'tool-get_location').output, { city: 'Paris' });
  assert.deepEqual(shown(answer.messages[1]), shown((await stored(located))[1]));
  page.unmount();
  did('runs a tool in the page');

  // An answer that ends with the results of tools, since the session allows no further step, is not sent back.
  const { session: brief } = await call('/api/sessions', { method: 'POST', body: JSON.stringify({ max_steps: 1 }) });
  page = chat(brief.id, { sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithToolCalls });
  const over = await ask(page, { text: short });
  assert.equal(over.status, 'ready', String(over.error));
  assert.equal(over.messages[1].metadata.finishReason, 'max-steps');
  assert.equal(over.messages[1].parts.find((p) => p.type === 'tool-get_current_datetime').state, 'output-available');
  page.unmount();
  did('ends after a tool');

  // Other answers and another version of a message, from the page that said it and from one that has loaded it.
  // Message ids that are UUIDs look like the gateway's own.
  const tree = newChat('tree');
  page = chat(tree, { generateId: () => crypto.randomUUID() });
  await ask(page, { text: short });
  for (const options of [() => undefined, (messageId) => ({ messageId })]) {
    const before = page.chat.messages[1].id;
    await page.chat.regenerate(options(before));
    const { status, error, messages } = await page.until(idle);
    assert.equal(status, 'ready', String(error));
    assert.equal(messages.length, 2);
    assert.notEqual(messages[1].id, before);
  }
  await ask(page, { text: 'hello', messageId: page.chat.messages[0].id });
  await page.chat.regenerate({ messageId: page.chat.messages[0].id });
  const edited = await page.until(idle);
  assert.deepEqual(edited.messages.map((m) => m.parts.find((p) => p.type === 'text').text.slice(0, 5)), ['hello', 'Hello']);
  const session = `/api/sessions/${sessions.get(tree)}`;
  let { messages: branch } = await call(session);
  assert.deepEqual(branch.map((m) => m.siblings?.length), [2, 2]);
  assert.deepEqual((await stored(tree)).map((m) => m.id), [branch[0].id, edited.messages[1].id]);
  page.unmount();
  ({ messages: branch } = await call(`${session}/leaf`, { method: 'PUT', body: JSON.stringify({ message_id: branch[0].siblings[0] }) }));
  assert.deepEqual(branch.map((m) => m.siblings?.length), [2, 3, undefined, undefined]);
  page = chat(tree, { messages: await stored(tree) });
  await ask(page, { text: 'hello again', messageId: page.chat.messages[0].id });
  await page.chat.regenerate();
  await page.until(idle);
  ({ messages: branch } = await call(session));
  assert.deepEqual(branch.map((m) => [m.content, m.siblings?.length]).map(([c, n]) => [typeof c === 'string' ? c : '', n]), [['hello again', 3], ['', 2]]);
  page.unmount();
  did('edits and regenerates');

  // Stop.
  const stopped = newChat('stopped');
  page = chat(stopped);
  const sending = page.chat.sendMessage({ text: 'write a long story' });
  await page.until(({ messages }) => messages.at(-1)?.role === 'assistant');
  assert.equal((await call(`/api/chat/${stopped}/stream`, { method: 'DELETE' })).success, true);
  await sending;
  await page.until(idle);
  assert.equal((await call(`/api/runs/${page.chat.messages[1].id}`)).run.state, 'cancelled');
  page.unmount();
  did('stops');

  if (version === '5') return;
  // Approvals, one given and one refused.
  for (const approved of [true, false]) {
    const id = newChat('approval');
    page = chat(id, { sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses });
    await ask(page, { text: question });
    let now = await ask(page, { text: 'delete it' });
    let part = now.messages.at(-1).parts.find((p) => p.type === 'tool-doc_delete');
    assert.equal(part.state, 'approval-requested', JSON.stringify(now.messages.at(-1)));
    const waiting = (await call(`/api/sessions/${sessions.get(id)}?format=ui&ui=${version}`)).messages.at(-1);
    assert.equal(waiting.parts.find((p) => p.type === 'tool-doc_delete').approval.id, part.approval.id);
    await page.chat.addToolApprovalResponse({ id: part.approval.id, approved, reason: 'because' });
    now = await page.until(({ status, messages }) => status === 'ready' && messages.at(-1).parts.at(-1).type === 'text');
    assert.equal(now.messages.length, 4);
    part = now.messages.at(-1).parts.find((p) => p.type === 'tool-doc_delete');
    assert.equal(part.state, approved ? 'output-available' : 'output-denied');
    page.unmount();
  }
  did('asks for approval');
});

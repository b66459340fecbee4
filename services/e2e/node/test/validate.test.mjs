import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { EXIT } from '../lib/exit.mjs';
import { newerNode } from '../lib/node.mjs';

const program = fileURLToPath(new URL('../validate-messages.mjs', import.meta.url));

async function validate(version, input) {
  const child = spawn(process.execPath, [program, version], { stdio: ['pipe', 'pipe', 'pipe'] });
  child.stdin.on('error', () => {}); // it may refuse before it has read
  child.stdin.end(typeof input === 'string' ? input : JSON.stringify(input));
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (d) => (stdout += d));
  child.stderr.on('data', (d) => (stderr += d));
  const [code] = await once(child, 'close');
  return { code, verdicts: stdout.split('\n').filter(Boolean).map((line) => JSON.parse(line)), stderr };
}

const call = { type: 'tool-call', toolCallId: 'c1', toolName: 'doc_create', input: { title: 'A' } };
const result = (output) => ({ role: 'tool', content: [{ type: 'tool-result', toolCallId: 'c1', toolName: 'doc_create', output }] });
const file = (data) => ({ role: 'user', content: [{ type: 'file', mediaType: 'image/png', data }] });

// name, message, and which of v5, v6, v7 take it: what we may store, and what we must not.
const FORMS = [
  ['system text', { role: 'system', content: 'Be brief.' }, 'YYY'],
  ['user text', { role: 'user', content: 'hi' }, 'YYY'],
  ['file as URL', file('https://x.example/y.png'), 'YYY'],
  ['file as base64', file('JVBERi0='), 'YYY'],
  ['file as an object', file({ type: 'data', data: 'JVBERi0=' }), '--Y'],
  ['reasoning, text and call', { role: 'assistant', content: [{ type: 'reasoning', text: 'hm', providerOptions: { anthropic: { signature: 'S' } } }, { type: 'text', text: 'ok' }, call] }, 'YYY'],
  ['provider-executed', { role: 'assistant', content: [{ ...call, providerExecuted: true }, { type: 'tool-result', toolCallId: 'c1', toolName: 'doc_create', output: { type: 'json', value: [] } }] }, 'YYY'],
  ['json output', result({ type: 'json', value: { id: 'd1' } }), 'YYY'],
  ['text output', result({ type: 'text', value: 'x' }), 'YYY'],
  ['error output', result({ type: 'error-text', value: 'x' }), 'YYY'],
  ['denied output', result({ type: 'execution-denied', reason: 'no' }), '-YY'],
  ['media output', result({ type: 'content', value: [{ type: 'media', mediaType: 'image/png', data: 'AA==' }] }), 'YY-'],
  ['output of v4', { role: 'tool', content: [{ type: 'tool-result', toolCallId: 'c1', toolName: 'doc_create', result: 'x' }] }, '---'],
  ['approval request', { role: 'assistant', content: [call, { type: 'tool-approval-request', approvalId: 'a1', toolCallId: 'c1' }] }, '-YY'],
  ['null options', { role: 'user', content: [{ type: 'text', text: 'x', providerOptions: null }] }, '---'],
  ['call without input', { role: 'assistant', content: [{ type: 'tool-call', toolCallId: 'c1', toolName: 't' }] }, '---'],
  ['no role', { content: 'x' }, '---'],
];

const UI_FORMS = [
  ['text', { id: 'm1', role: 'user', parts: [{ type: 'text', text: 'hi' }] }, 'YYY'],
  ['tool part', { id: 'm2', role: 'assistant', parts: [{ type: 'step-start' }, { type: 'tool-doc_create', toolCallId: 'c1', state: 'output-available', input: {}, output: {} }] }, 'YYY'],
  ['unknown part', { id: 'm3', role: 'assistant', parts: [{ type: 'zebra' }] }, '---'],
  ['no parts', { id: 'm4', role: 'user', content: 'hi' }, '---'],
];

for (const [i, version] of ['ai5', 'ai6', 'ai7'].entries()) {
  const skip = version === 'ai7' && !newerNode() ? 'no Node of 22.12 or newer' : false;
  test(`${version}: knows the forms that may be stored`, { skip }, async () => {
    const { code, verdicts, stderr } = await validate(version, { messages: FORMS.map(([, m]) => m), uiMessages: UI_FORMS.map(([, m]) => m) });
    assert.equal(code, EXIT.failed, stderr);
    const want = [
      ...FORMS.map(([name, , takes], index) => [`model ${index} ${name}`, takes[i] === 'Y']),
      ...UI_FORMS.map(([name, , takes], index) => [`ui ${index} ${name}`, takes[i] === 'Y']),
    ];
    const names = want.map(([name]) => name);
    assert.deepEqual(verdicts.map((v, n) => [names[n], v.ok]), want);
    for (const v of verdicts) {
      assert.equal(v.error === undefined, v.ok);
      assert.ok(v.ok || (v.error.length > 0 && v.error.length < 1000), v.error);
    }
  });

  test(`${version}: takes a good conversation`, { skip }, async () => {
    const { code, stderr } = await validate(version, { messages: FORMS.filter(([, , takes]) => takes === 'YYY').map(([, m]) => m) });
    assert.equal(code, EXIT.ok, stderr);
  });
}

test('a wrong part is named in a few words', async () => {
  const { verdicts } = await validate('ai6', { messages: [{ role: 'assistant', content: [{ type: 'tool-call', toolCallId: 'c1', toolName: 't' }] }] });
  assert.match(verdicts[0].error, /content\.0\.input/);
});

test('refuses what it cannot read', async () => {
  assert.equal((await validate('ai4', '{}')).code, EXIT.usage);
  assert.equal((await validate('ai5', 'no json')).code, EXIT.usage);
  assert.equal((await validate('ai5', '{"messages":[]}')).code, EXIT.failed);
});

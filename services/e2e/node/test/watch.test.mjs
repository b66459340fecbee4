import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { EXIT } from '../lib/exit.mjs';
import { newerNode } from '../lib/node.mjs';

const here = new URL('..', import.meta.url);
const noNewerNode = newerNode() ? false : 'no Node of 22.12 or newer';

// What each program can do by itself.
const CLIENTS = {
  'eventsource 4': { program: 'watch-eventsource', args: [], ids: true, reconnects: true },
  'eventsource 5': { program: 'watch-eventsource', args: ['--client', '5'], ids: true, reconnects: true, skip: noNewerNode },
  'fetch-event-source': { program: 'watch-fetch-event-source', args: [], ids: true, reconnects: true, posts: true },
  'eventsource-parser 3': { program: 'watch-parser', args: [], ids: true, posts: true },
  'eventsource-parser 4': { program: 'watch-parser', args: ['--client', '4'], ids: true, posts: true, skip: noNewerNode },
  lines: { program: 'watch-lines', args: [], ids: false, posts: true },
};

/** Declares a test for each client that fits. */
function forEach(fits, name, body) {
  for (const [client, c] of Object.entries(CLIENTS)) {
    if (fits(c)) test(`${client}: ${name}`, { skip: c.skip ?? false }, (t) => body(t, c));
  }
}
const all = () => true;

/** Serves with one handler for each request in turn, the last one for all others; keeps the requests. */
async function serve(t, ...handlers) {
  const requests = [];
  const server = createServer(async (req, res) => {
    let body = '';
    for await (const chunk of req) body += chunk;
    requests.push({ method: req.method, url: req.url, headers: req.headers, body });
    await handlers[Math.min(requests.length, handlers.length) - 1](res, req);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}/events`, requests };
}

/** Runs a program to its end: {code, events, stderr}. */
async function watch(c, ...args) {
  const child = spawn(process.execPath, [fileURLToPath(new URL(`${c.program}.mjs`, here)), ...c.args, '--timeout', '20', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (d) => (stdout += d));
  child.stderr.on('data', (d) => (stderr += d));
  const [code] = await once(child, 'close');
  return { code, events: stdout.split('\n').filter(Boolean).map((line) => JSON.parse(line)), stderr };
}

const HEAD = { 'content-type': 'text/event-stream', 'cache-control': 'no-cache, no-transform' };

function event(id, type, fields = {}) {
  const data = JSON.stringify({ type, ...fields });
  return { event: type, id, data, text: `event: ${type}\ndata: ${data}\nid: ${id}\n\n` };
}
const HELLO = [event('1-1', 'text-delta', { delta: 'Grüße, ' }), event('1-2', 'text-delta', { delta: '世界 🌍\u2028' })];
const DONE = event('1-3', 'done', { text: 'Grüße, 世界 🌍\u2028', steps: 1 });

/** What a client should have printed for events. */
function printed(c, ...events) {
  return events.map(({ event, id, data }) => ({ event, id: c.ids ? id : null, data }));
}

/** Writes text in pieces of n bytes, each in a packet of its own more or less. */
async function inPieces(res, text, n) {
  const bytes = Buffer.from(text);
  for (let i = 0; i < bytes.length; i += n) {
    res.write(bytes.subarray(i, i + n));
    await new Promise(setImmediate);
  }
}

describe('clients', { concurrency: 4 }, () => {
  forEach(all, 'reads a stream as ours is framed', async (t, c) => {
    const { url, requests } = await serve(t, (res) => {
      res.writeHead(200, HEAD);
      res.write(':\nretry: 10\n');
      res.write(`${HELLO[0].text}:\n:\n${HELLO[1].text}:\n${DONE.text}`);
    });
    const got = await watch(c, url);
    assert.deepEqual(got.events, printed(c, ...HELLO, DONE), got.stderr);
    assert.equal(got.code, EXIT.ok);
    assert.match(got.stderr, /^open$/m);
    assert.equal(requests.length, 1);
  });

  forEach(all, 'reads a stream in small pieces', async (t, c) => {
    const { url } = await serve(t, async (res) => {
      res.writeHead(200, HEAD);
      await inPieces(res, [...HELLO, DONE].map((e) => `${e.text}:\n`).join(''), 3);
    });
    assert.deepEqual((await watch(c, url)).events, printed(c, ...HELLO, DONE));
  });

  forEach((c) => c.reconnects, 'resumes by itself after a cut', async (t, c) => {
    const cutAfter = (text) => (res) => {
      res.writeHead(200, HEAD);
      res.write(`:\nretry: 10\n${text}`, () => res.destroy());
    };
    const { url, requests } = await serve(
      t,
      cutAfter(HELLO[0].text),
      cutAfter(':\n'), // before anything came
      cutAfter(`${HELLO[1].text}event: done\ndata: {"type":"do`), // in the middle of an event
      (res) => {
        res.writeHead(200, HEAD);
        res.write(DONE.text);
      },
    );
    const got = await watch(c, url);
    assert.deepEqual(got.events, printed(c, ...HELLO, DONE), got.stderr);
    assert.equal(got.code, EXIT.ok);
    assert.deepEqual(requests.map((r) => r.headers['last-event-id']), [undefined, '1-1', '1-1', '1-2']);
  });

  forEach((c) => !c.reconnects, 'tells a cut from an end, and resumes when asked to', async (t, c) => {
    const { url, requests } = await serve(
      t,
      (res) => {
        res.writeHead(200, HEAD);
        res.write(HELLO[0].text, () => res.destroy());
      },
      (res) => {
        res.writeHead(200, HEAD);
        res.end(HELLO[1].text);
      },
    );
    const cut = await watch(c, url);
    assert.deepEqual(cut.events, printed(c, HELLO[0]));
    assert.equal(cut.code, EXIT.cut, cut.stderr);
    const ended = await watch(c, url, '--last-event-id', '1-1');
    assert.deepEqual(ended.events, printed(c, HELLO[1]));
    assert.equal(ended.code, EXIT.ended, ended.stderr);
    assert.equal(requests[1].headers['last-event-id'], '1-1');
  });

  forEach((c) => c.program === 'watch-eventsource', 'begins behind an event, and stops at 204', async (t, c) => {
    const { url, requests } = await serve(
      t,
      (res) => {
        res.writeHead(200, HEAD);
        res.end(`retry: 10\n${HELLO[1].text}`);
      },
      (res) => res.writeHead(204).end(),
    );
    const got = await watch(c, url, '--last-event-id', '1-1', '--query', 'token=t', '--until', '');
    assert.deepEqual(got.events, printed(c, HELLO[1]), got.stderr);
    assert.equal(got.code, EXIT.ok);
    assert.deepEqual(requests.map((r) => r.url), Array(2).fill('/events?token=t&after=1-1'));
    assert.equal(requests[1].headers['last-event-id'], '1-2');
  });

  // The two traps that our framing avoids: these tests fail when a client no longer has them.
  const fetchEventSource = CLIENTS['fetch-event-source'];

  test('fetch-event-source: loses an event whose id came first and was cut off', async (t) => {
    const { url, requests } = await serve(
      t,
      (res) => {
        res.writeHead(200, HEAD);
        res.write('retry: 10\nid: 1-1\nevent: text-delta\n', () => res.destroy());
      },
      (res) => {
        res.writeHead(200, HEAD);
        res.write(DONE.text);
      },
    );
    await watch(fetchEventSource, url);
    assert.equal(requests[1].headers['last-event-id'], '1-1');
  });

  test('fetch-event-source: delivers an empty message for a heartbeat with a blank line', async (t) => {
    const { url } = await serve(t, (res) => {
      res.writeHead(200, HEAD);
      res.write(`:\n\n${DONE.text}`);
    });
    const got = await watch(fetchEventSource, url);
    assert.deepEqual(got.events, [{ event: 'message', id: null, data: '' }, ...printed(fetchEventSource, DONE)]);
  });

  forEach((c) => c.posts, 'posts a body with its headers', async (t, c) => {
    const { url, requests } = await serve(t, (res) => {
      res.writeHead(200, HEAD);
      res.write(DONE.text);
    });
    const got = await watch(c, url, '--post', '{"content":"hi"}', '--token', 'secret', '--header', 'X-Workspace-Id: w1', '--header', 'Idempotency-Key: k:1');
    assert.equal(got.code, EXIT.ok, got.stderr);
    const [{ method, headers, body }] = requests;
    assert.equal(method, 'POST');
    assert.equal(body, '{"content":"hi"}');
    assert.equal(headers.authorization, 'Bearer secret');
    assert.equal(headers['x-workspace-id'], 'w1');
    assert.equal(headers['idempotency-key'], 'k:1');
    assert.equal(headers['content-type'], 'application/json');
    assert.equal(headers.accept, 'text/event-stream');
  });

  forEach(all, 'ends at the event named error', async (t, c) => {
    const failed = event('1-2', 'error', { error: 'the provider is away', code: 'UPSTREAM' });
    const { url, requests } = await serve(t, (res) => {
      res.writeHead(200, HEAD);
      res.end(HELLO[0].text + failed.text);
    });
    const got = await watch(c, url);
    assert.deepEqual(got.events, printed(c, HELLO[0], failed), got.stderr);
    assert.equal(got.code, EXIT.ok);
    assert.equal(requests.length, 1);
  });

  forEach(all, 'says why it was refused', async (t, c) => {
    const { url, requests } = await serve(t, (res) => {
      res.writeHead(401, { 'content-type': 'application/json' });
      res.end('{"error":"the token has expired"}');
    });
    const got = await watch(c, url);
    assert.equal(got.code, EXIT.failed);
    assert.match(got.stderr, /401/);
    assert.equal(requests.length, 1);
  });

  forEach(all, 'ends after as many events as were asked for', async (t, c) => {
    const { url } = await serve(t, (res) => {
      res.writeHead(200, HEAD);
      res.write(HELLO[0].text + HELLO[1].text + DONE.text);
    });
    const got = await watch(c, url, '--max', '2');
    assert.deepEqual(got.events, printed(c, ...HELLO));
    assert.equal(got.code, EXIT.ok);
  });

  forEach(all, 'gives up when its time is over', async (t, c) => {
    const { url } = await serve(t, (res) => {
      res.writeHead(200, HEAD);
      res.write(HELLO[0].text);
    });
    const got = await watch(c, url, '--timeout', '1');
    assert.equal(got.code, EXIT.failed);
    assert.match(got.stderr, /no end within 1 s/);
  });

  forEach(all, 'refuses a wrong command line', async (_t, c) => {
    const url = 'http://127.0.0.1:9/';
    for (const args of [[], ['nowhere'], [url, url], [url, '--header', 'x'], [url, '--max', 'many'], [url, '--unknown'], [url, '--client', '1']]) {
      if (args.includes('--client') && c.program !== 'watch-eventsource' && c.program !== 'watch-parser') continue;
      const got = await watch(c, ...args);
      assert.equal(got.code, EXIT.usage, `${args}: ${got.stderr}`);
    }
    if (!c.posts) assert.equal((await watch(c, url, '--post', '{}')).code, EXIT.usage);
  });

  forEach((c) => c.args.length > 0, 'dies with the process that passes it on', async (t, c) => {
    let closed;
    const gone = new Promise((resolve) => (closed = resolve));
    let seen;
    const arrived = new Promise((resolve) => (seen = resolve));
    const { url } = await serve(t, (res) => {
      res.on('close', closed);
      res.writeHead(200, HEAD);
      res.write(HELLO[0].text);
      seen();
    });
    const child = spawn(process.execPath, [fileURLToPath(new URL(`${c.program}.mjs`, here)), ...c.args, url], { stdio: 'ignore' });
    await arrived;
    child.kill('SIGKILL');
    await gone;
  });
});

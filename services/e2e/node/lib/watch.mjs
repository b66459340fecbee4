// The common parts of the watching programs: the command line, the request, the output.
//
// On stdout: each event as one line {"event","id","data"}, with data as received. On stderr: "open"
// at the beginning of each response, "error: …" for errors of the library, and the reason of the end.
import { parseArgs } from 'node:util';
import { EXIT, Failure } from './exit.mjs';

const USAGE = `URL [options]
  --token T           as Authorization: Bearer T
  --header 'K: V'     any number of them
  --query K=V         any number of them, for clients that cannot set headers
  --post JSON         POST this body instead of GET
  --last-event-id ID  begin behind this event
  --until TYPES       end at one of these events (default done,error; empty: when the library ends)
  --max N             end after N events
  --timeout SECONDS   fail after this time (default 60)
  --client VERSION    major version of the library, where there are two`;

const FLAGS = {
  token: { type: 'string' },
  header: { type: 'string', multiple: true, default: [] },
  query: { type: 'string', multiple: true, default: [] },
  post: { type: 'string' },
  'last-event-id': { type: 'string' },
  until: { type: 'string', default: 'done,error' },
  max: { type: 'string' },
  timeout: { type: 'string', default: '60' },
  client: { type: 'string' },
};

/** The command line as {url, headers, body, lastEventId, until, max, timeout, client}. */
export function options(argv = process.argv.slice(2)) {
  let args;
  try {
    args = parseArgs({ args: argv, options: FLAGS, allowPositionals: true });
  } catch (error) {
    throw new Failure(EXIT.usage, `${error.message}\n${USAGE}`);
  }
  const { values, positionals } = args;
  if (positionals.length !== 1 || !URL.canParse(positionals[0])) throw new Failure(EXIT.usage, `one URL is needed\n${USAGE}`);
  const url = new URL(positionals[0]);
  for (const pair of values.query) url.searchParams.append(...cut(pair, '='));
  const headers = Object.fromEntries(values.header.map((line) => cut(line, ':')));
  if (values.token) headers.authorization = `Bearer ${values.token}`;
  if (values.post !== undefined) headers['content-type'] ??= 'application/json';
  const max = values.max === undefined ? Infinity : Number(values.max);
  const timeout = Number(values.timeout);
  if (!(max > 0) || !(timeout > 0)) throw new Failure(EXIT.usage, `--max and --timeout are numbers above 0\n${USAGE}`);
  return {
    url: url.href,
    headers,
    body: values.post,
    lastEventId: values['last-event-id'],
    until: new Set(values.until.split(',').filter(Boolean)),
    max,
    timeout,
    client: values.client,
  };
}

function cut(text, separator) {
  const at = text.indexOf(separator);
  if (at < 1) throw new Failure(EXIT.usage, `${JSON.stringify(text)} is not of the form name${separator}value`);
  return [text.slice(0, at).trim(), text.slice(at + 1).trim()];
}

/** The options of fetch for a client that sets its headers itself. */
export function request({ headers, body, lastEventId }) {
  const all = { accept: 'text/event-stream', ...headers };
  if (lastEventId !== undefined) all['last-event-id'] = lastEventId;
  return { method: body === undefined ? 'GET' : 'POST', headers: all, body };
}

/** Throws unless a stream has begun, in the way that a careful client would. */
export async function begun(response) {
  if (response.status === 204) throw new Failure(EXIT.ended, 'status 204: nothing to watch');
  const type = response.headers.get('content-type') ?? '';
  if (!response.ok || !type.startsWith('text/event-stream')) {
    const text = await response.text().catch(() => '');
    throw new Failure(EXIT.failed, `status ${response.status} ${type}: ${text.slice(0, 2000)}`);
  }
  opened();
}

/** Notes on stderr that an answer has begun. */
export function opened() {
  process.stderr.write('open\n');
}

/** Notes on stderr what a library reports before it tries again. */
export function reported(error) {
  process.stderr.write(`error: ${error?.message ?? error}\n`);
}

/**
 * Returns print, which writes an event and returns whether it was the last awaited one. Later events
 * are not written.
 */
export function printer({ until, max }) {
  let count = 0;
  let last = false;
  return ({ event, id, data }) => {
    if (last) return true;
    process.stdout.write(`${JSON.stringify({ event, id, data })}\n`);
    count++;
    last = until.has(event) || count >= max;
    return last;
  };
}

/** Fails after the options' time. */
export function deadline({ timeout }) {
  return new Promise((_, reject) => {
    setTimeout(() => reject(new Failure(EXIT.failed, `no end within ${timeout} s`)), timeout * 1000);
  });
}

/** Reads the chunks of a body; a broken connection is EXIT.cut. */
export async function* chunks(response) {
  try {
    yield* response.body;
  } catch (error) {
    throw new Failure(EXIT.cut, `the connection broke: ${error?.cause?.message ?? error?.message}`);
  }
}

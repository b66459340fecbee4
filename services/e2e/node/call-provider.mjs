// One call of a model provider with its official SDK. The call is read from stdin as
// JSON and what came of it goes to stdout as JSON, the same that bench/oracle/call
// prints for the Go SDKs:
//
//   in:  {sdk: anthropic|openai, url, key, method: stream|create|count|models, body, headers}
//   out: {events, value, error: {status, message, requestId, retryAfter}, wire: {status, headers, body}}
//
// wire is what came over the network, its body in base64 as far as it was read.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { EXIT, Failure, run } from './lib/exit.mjs';

const wire = { status: 0, headers: {}, body: '' };
const pieces = [];

/** The SDK's fetch, which keeps what it passes on. */
async function recording(url, init) {
  const response = await fetch(url, init);
  wire.status = response.status;
  wire.headers = Object.fromEntries(response.headers);
  const kept = response.body?.pipeThrough(
    new TransformStream({
      transform(chunk, controller) {
        pieces.push(chunk);
        controller.enqueue(chunk);
      },
    }),
  );
  return new Response(kept, { status: response.status, statusText: response.statusText, headers: response.headers });
}

/** The calls that can be made: each gives a stream of events or a value. */
function calls({ sdk, url, key, headers }) {
  const options = { apiKey: key, baseURL: url, maxRetries: 0, timeout: 30_000, fetch: recording, defaultHeaders: headers };
  if (sdk === 'anthropic') {
    const client = new Anthropic(options);
    return {
      stream: (body) => client.messages.create({ ...body, stream: true }),
      create: (body) => client.messages.create(body),
      count: (body) => client.messages.countTokens(body),
      models: () => client.models.list().then((page) => page.data),
    };
  }
  if (sdk === 'openai') {
    const client = new OpenAI(options);
    return {
      stream: (body) => client.chat.completions.create({ ...body, stream: true }),
      create: (body) => client.chat.completions.create(body),
      models: () => client.models.list().then((page) => page.data),
    };
  }
  throw new Failure(EXIT.usage, `sdk is anthropic or openai, not ${sdk}`);
}

async function input() {
  let text = '';
  for await (const chunk of process.stdin) text += chunk;
  return JSON.parse(text);
}

await run(async () => {
  const job = await input();
  const call = calls(job)[job.method];
  if (!call) throw new Failure(EXIT.usage, `the SDK ${job.sdk} has no method ${job.method} here`);
  const out = { events: [], value: null, error: null, wire };
  try {
    const answer = await call(job.body);
    if (job.method === 'stream') for await (const event of answer) out.events.push(event);
    else out.value = answer;
  } catch (error) {
    out.error = {
      status: error.status ?? 0,
      message: error.message,
      requestId: error.requestID ?? '',
      retryAfter: error.headers?.get('retry-after') ?? '',
    };
  }
  wire.body = Buffer.concat(pieces).toString('base64');
  process.stdout.write(JSON.stringify(out));
  return EXIT.ok;
});

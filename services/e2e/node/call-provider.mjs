// Calls a model provider with its official SDK, one call after the other. Each call is a line of
// JSON on stdin, and its result a line on stdout, in the format of bench/oracle/call for the Go
// SDKs:
//
//   in:  {sdk: anthropic|openai, url, key, method: stream|create|count|models, body, headers}
//   out: {events, value, error: {status, message, requestId, retryAfter}, wire: {status, headers, body}}
//
// wire is the response on the network, with the body read so far in base64.
import { createInterface } from 'node:readline';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { EXIT, Failure, run } from './lib/exit.mjs';

/** The SDK's fetch, which keeps in wire and pieces what it passes on. */
function recording(wire, pieces) {
  return async (url, init) => {
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
  };
}

/** The calls that can be made: each gives a stream of events or a value. */
function calls({ sdk, url, key, headers }, fetch) {
  const options = { apiKey: key, baseURL: url, maxRetries: 0, timeout: 30_000, fetch, defaultHeaders: headers };
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

/** Makes one call and tells what came of it. */
async function make(job) {
  const wire = { status: 0, headers: {}, body: '' };
  const pieces = [];
  const call = calls(job, recording(wire, pieces))[job.method];
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
  return out;
}

await run(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await make(JSON.parse(line)))}\n`);
  }
  return EXIT.ok;
});

// The browsers' EventSource (npm eventsource): it sends GET, reconnects forever with the last id,
// and delivers only events with a listener for their type.
import { EXIT, Failure, run } from './lib/exit.mjs';
import { needNewerNode } from './lib/node.mjs';
import { deadline, opened, options, printer, reported } from './lib/watch.mjs';

// The public event types, and that of streams without types.
const TYPES = [
  'message', 'snapshot', 'run-start', 'user-message', 'text-delta', 'reasoning-delta', 'tool-call-start', 'tool-call-delta',
  'tool-call-complete', 'tool-approval-request', 'tool-approval-response', 'tool-client-request', 'tool-result', 'source', 'step-complete', 'step-retry', 'waiting', 'done', 'error',
];

async function watch(o) {
  const { EventSource } = await import(o.client === '5' ? 'eventsource5' : 'eventsource4');
  const print = printer(o);
  const url = new URL(o.url);
  // As in a page, which cannot set the first Last-Event-ID.
  if (o.lastEventId !== undefined) url.searchParams.set('after', o.lastEventId);
  const source = new EventSource(url.href, {
    // Headers are an extension of this package; browsers pass ?token= (--query).
    fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, ...o.headers } }),
  });
  return new Promise((resolve, reject) => {
    source.addEventListener('open', opened);
    for (const type of TYPES) {
      source.addEventListener(type, (e) => {
        if (e.data === undefined) {
          // Not the server's event "error" but that of this class.
          reported(e);
          if (source.readyState !== source.CLOSED) return;
          if (e.code === 204) resolve(o.until.size === 0 ? EXIT.ok : EXIT.ended);
          else reject(new Failure(EXIT.failed, `closed: ${e.message}`));
          return;
        }
        if (print({ event: type, id: e.lastEventId || null, data: e.data })) {
          source.close();
          resolve(EXIT.ok);
        }
      });
    }
  });
}

await run(async () => {
  const o = options();
  if (o.body !== undefined) throw new Failure(EXIT.usage, 'an EventSource cannot POST');
  if (o.client === '5') await needNewerNode('eventsource 5');
  else if (o.client !== undefined && o.client !== '4') throw new Failure(EXIT.usage, '--client is 4 or 5');
  return Promise.race([watch(o), deadline(o)]);
});

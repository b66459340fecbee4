// @microsoft/fetch-event-source: it can send POST, and repeats the request with the last id when the
// connection breaks. It delivers a message for each blank line, even an empty one, which is printed.
import { fetchEventSource } from '@microsoft/fetch-event-source';
import { EXIT, Failure, run } from './lib/exit.mjs';
import { begun, deadline, options, printer, reported, request } from './lib/watch.mjs';

// It expects a browser.
globalThis.window = globalThis;
globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };

async function watch(o) {
  const print = printer(o);
  const stop = new AbortController();
  let code;
  await fetchEventSource(o.url, {
    ...request(o),
    signal: stop.signal,
    openWhenHidden: true,
    onopen: begun,
    onmessage: ({ event, id, data }) => {
      if (print({ event: event || 'message', id: id || null, data })) {
        code = EXIT.ok;
        stop.abort();
      }
    },
    onclose: () => {
      code ??= o.until.size === 0 ? EXIT.ok : EXIT.ended;
    },
    onerror: (error) => {
      if (error instanceof Failure) throw error; // refused: a retry would not help
      reported(error.cause ?? error);
    },
  });
  return code;
}

await run(() => {
  const o = options();
  return Promise.race([watch(o), deadline(o)]);
});

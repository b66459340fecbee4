// fetch with eventsource-parser, the parser of most libraries. It does not reconnect.
import { EXIT, Failure, run } from './lib/exit.mjs';
import { needNewerNode } from './lib/node.mjs';
import { begun, chunks, deadline, options, printer, reported, request } from './lib/watch.mjs';

async function watch(o) {
  const { createParser } = await import(o.client === '4' ? 'eventsource-parser4' : 'eventsource-parser3');
  const print = printer(o);
  const response = await fetch(o.url, request(o));
  await begun(response);
  let last = false;
  const parser = createParser({
    onEvent: ({ event, id, data }) => {
      last = print({ event: event ?? 'message', id: id ?? null, data });
    },
    onError: reported,
  });
  const decoder = new TextDecoder();
  for await (const chunk of chunks(response)) {
    parser.feed(decoder.decode(chunk, { stream: true }));
    if (last) return EXIT.ok;
  }
  return EXIT.ended;
}

await run(async () => {
  const o = options();
  if (o.client === '4') await needNewerNode('eventsource-parser 4');
  else if (o.client !== undefined && o.client !== '3') throw new Failure(EXIT.usage, '--client is 3 or 4');
  return Promise.race([watch(o), deadline(o)]);
});

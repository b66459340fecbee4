// The simple client that many people write: it splits the input into lines, takes those that begin
// with "data: ", and gets the event's type from its JSON. It ignores ids and does not reconnect.
import { EXIT, run } from './lib/exit.mjs';
import { begun, chunks, deadline, options, printer, request } from './lib/watch.mjs';

async function watch(o) {
  const print = printer(o);
  const response = await fetch(o.url, request(o));
  await begun(response);
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of chunks(response)) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue;
      const data = line.slice('data: '.length);
      const event = data === '[DONE]' ? data : JSON.parse(data).type;
      if (print({ event, id: null, data })) return EXIT.ok;
    }
  }
  return EXIT.ended;
}

await run(() => {
  const o = options();
  return Promise.race([watch(o), deadline(o)]);
});

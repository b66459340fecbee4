// use-chat-example GATEWAY: runs the component of docs/api.md, whose text is on stdin after a line
// {"token","workspace"}: types a message into its form and prints what the page then shows.
import { text } from 'node:stream/consumers';
import { transform } from 'sucrase';
import { run } from './lib/exit.mjs';
import { needNewerNode } from './lib/node.mjs';

await run(async () => {
  await needNewerNode('useChat');
  const [gateway] = process.argv.slice(2);
  const [who, ...page] = (await text(process.stdin)).split('\n');
  const jsx = page.join('\n').match(/^```jsx\n(.*?)^```$/ms)[1];
  const { code } = transform(jsx, { transforms: ['jsx'], jsxRuntime: 'automatic', production: true });
  const packages = { '@ai-sdk/react': 'react7', ai: 'ai7' };
  const absolute = code.replaceAll(/from\s*["']([^"']+)["']/g, (_, name) => `from '${import.meta.resolve(packages[name] ?? name)}'`);
  const { createElement, flushSync, createRoot } = await import('./lib/use-chat.mjs');
  const { Chat } = await import(`data:text/javascript,${encodeURIComponent(absolute)}`);

  const root = document.getElementById('root');
  flushSync(() => createRoot(root).render(createElement(Chat, { gateway, ...JSON.parse(who) })));
  root.querySelector('input').value = 'what time is it?';
  const answered = new Promise((resolve) => {
    new window.MutationObserver(() => {
      const shown = [...root.querySelectorAll('p')].map((p) => p.textContent);
      if (/UTC offset .*\)/.test(shown[1])) resolve(shown);
    }).observe(root, { childList: true, subtree: true, characterData: true });
  });
  root.querySelector('form').dispatchEvent(new window.Event('submit', { bubbles: true, cancelable: true }));
  process.stdout.write(`${(await answered).join('\n')}\n`);
});

// useChat of @ai-sdk/react in React, as a front end has it.
import { JSDOM } from 'jsdom';

const { window } = new JSDOM('<!doctype html><div id="root"></div>', { url: 'http://page.example/' });
Object.assign(globalThis, { window, document: window.document });
export const { createElement } = await import('react');
export const { createRoot } = await import('react-dom/client');
export const { flushSync } = await import('react-dom');

/** The packages of a version of the AI SDK. */
export async function sdk(version) {
  const [ai, { useChat }] = await Promise.all([import(`ai${version}`), import(`react${version}`)]);
  const WorkflowChatTransport = version === '7' ? (await import('workflow7/client')).WorkflowChatTransport : undefined;
  return { ...ai, useChat, WorkflowChatTransport };
}

/**
 * A mounted component that uses useChat. chat is what the hook returned last; until(ok) resolves to it
 * once ok(chat) is true.
 */
export function mount(useChat, options) {
  const root = createRoot(document.createElement('div'));
  const waiting = new Set();
  const page = { unmount: () => root.unmount() };
  function Chat() {
    page.chat = useChat(options);
    queueMicrotask(() => waiting.forEach((look) => look()));
    return page.chat.messages.map((m) => createElement('p', { key: m.id }, m.role));
  }
  const render = () => flushSync(() => root.render(createElement(Chat))); // what has changed is shown at once
  page.until = (ok) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`not in time: ${ok}; ${page.chat.status} ${JSON.stringify(page.chat.messages)}`)), 60_000);
      const look = () => {
        if (!ok(page.chat)) return;
        waiting.delete(look);
        clearTimeout(timer);
        resolve(page.chat);
      };
      waiting.add(look);
      render();
    });
  render();
  return page;
}

/** A fetch whose first POST, or GET, breaks off after a number of chunks, as a network does in Chromium. */
export function cutAfter(chunks, method = 'POST') {
  let cut = false;
  return async (input, init) => {
    const response = await fetch(input, init);
    if (cut || (init?.method ?? 'GET') !== method) return response;
    cut = true;
    let left = chunks;
    let rest = '';
    const decoder = new TextDecoder();
    const encoder = new TextEncoder();
    const reader = response.body.getReader();
    const body = new ReadableStream({
      async pull(controller) {
        for (;;) {
          const end = rest.indexOf('\n\n');
          if (left === 0) {
            await reader.cancel();
            return controller.error(new TypeError('network error'));
          }
          if (end >= 0) {
            left--;
            controller.enqueue(encoder.encode(rest.slice(0, end + 2)));
            rest = rest.slice(end + 2);
            return;
          }
          const { done, value } = await reader.read();
          if (done) return controller.close();
          rest += decoder.decode(value, { stream: true });
        }
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

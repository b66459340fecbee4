// Opens pages in Chromium and executes commands in them. Each line of standard input is
// {id, page, do, with}, and each answer {id, ok} or {id, error}; the browser ends with the input.
import path from 'node:path'
import readline from 'node:readline'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { chromium } from 'playwright-core'
import { find } from './chromium/find.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const browser = await chromium.launch({
  ...await find(),
  // It opens pages of this file only. Containers do not allow a sandbox, nor does root.
  // Otherwise a page without an address may not connect to this machine.
  args: ['--disable-features=LocalNetworkAccessChecks', '--no-sandbox'],
})
const built = await build({ entryPoints: [path.join(here, 'page.mjs')], bundle: true, write: false, format: 'iife', logLevel: 'error' })
const html = `<!doctype html><meta charset="utf-8"><title>Document</title><div id="editor"></div><script>${
  built.outputFiles[0].text.replaceAll('</script', '<\\/script')}</script>`

const pages = new Map()

const deeds = {
  // The page has the gateway's origin, like an application behind it.
  async open(name, { gateway, ...what }) {
    const page = await (await browser.newContext()).newPage()
    pages.set(name, page)
    await page.route(`${gateway}/editor`, route => route.fulfill({ contentType: 'text/html', body: html }))
    await page.goto(`${gateway}/editor`)
    await page.evaluate(w => window.open_document(w), { url: `${gateway.replace(/^http/, 'ws')}/ws/documents`, ...what })
  },
  // Waits until a function of window.page returns the given value.
  async until(name, { call, is }) {
    const want = JSON.stringify(is)
    await pages.get(name).waitForFunction(([call, want]) => JSON.stringify(window.page[call]()) === want, [call, want], { timeout: 30_000 })
  },
  async see(name, { text }) {
    await pages.get(name).waitForFunction(t => window.page.text().includes(t), text, { timeout: 30_000 })
  },
  async type(name, { text, delay }) {
    await pages.get(name).keyboard.type(text, { delay: delay ?? 0 })
  },
  async press(name, { key }) {
    await pages.get(name).keyboard.press(key)
  },
  async call(name, { call, args }) {
    return await pages.get(name).evaluate(([call, args]) => window.page[call](...args), [call, args ?? []])
  },
  async shot(name, { file }) {
    await pages.get(name).screenshot({ path: file })
  },
}

const turns = new Map() // the commands of one page run in order
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { id, page, do: deed, with: what } = JSON.parse(line)
  const turn = (turns.get(page) ?? Promise.resolve())
    .then(() => deeds[deed](page, what ?? {}))
    .then(ok => ({ id, ok: ok ?? null }), e => ({ id, error: String(e?.message ?? e) }))
  turns.set(page, turn)
  turn.then(answer => process.stdout.write(`${JSON.stringify(answer)}\n`))
}
await browser.close()

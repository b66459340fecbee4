// The oracle: reads one JSON command a line, answers with one JSON line.
//   {"cmd":"history","seed":n,"steps":n}   makes a history and what npm yjs makes of it
//   {"cmd":"script","seed":n,"steps":n}    makes edits to be made again elsewhere
//   {"cmd":"apply","updates":[b64],"v2":b} what npm yjs makes of updates
//   {"cmd":"canon","updates":[b64]}        the content alone of what npm yjs makes of updates
//   {"cmd":"ywasm","updates":[b64]}        what ywasm makes of them
import * as Y from 'yjs'
import readline from 'node:readline'
import { createRequire } from 'node:module'
import { open, canon } from './canon.mjs'
import { history, quiet } from './histories.mjs'
import { script } from './scripts.mjs'

const b64 = u => Buffer.from(u).toString('base64')
const un64 = s => new Uint8Array(Buffer.from(s, 'base64'))

const fresh = () => quiet(open(new Y.Doc({ guid: 'd' })))

const seen = doc => ({
  canon: canon(doc),
  xml: doc.getXmlFragment('x').toString(),
  text: doc.getText('t').toString().toWellFormed?.() ?? Buffer.from(doc.getText('t').toString()).toString(),
  sv: b64(Y.encodeStateVector(doc)),
  state: b64(Y.encodeStateAsUpdate(doc)),
  state2: b64(Y.encodeStateAsUpdateV2(doc))
})

function shuffled (n, r) {
  const order = Array.from({ length: n }, (_, i) => i)
  for (let i = 0; i < n * 0.2; i++) order.push(r.int(n))
  for (let i = order.length - 1; i > 0; i--) {
    const j = r.int(i + 1);
    [order[i], order[j]] = [order[j], order[i]]
  }
  return order
}

function attempt (f) {
  try { return f() } catch (e) { return { error: String(e) } }
}

function answer (q) {
  if (q.cmd === 'history') {
    const h = history(q.seed, q.steps)
    const { r, v1, v2 } = h
    const order = shuffled(v1.length, r)
    const half = Math.floor(order.length / 2)
    const inOrder = fresh(); v1.forEach(u => Y.applyUpdate(inOrder, u))
    const inOrder2 = fresh(); v2.forEach(u => Y.applyUpdateV2(inOrder2, u))
    const mixed = fresh()
    let mid
    order.forEach((i, k) => { Y.applyUpdate(mixed, v1[i]); if (k === half) mid = { state: b64(Y.encodeStateAsUpdate(mixed)), state2: b64(Y.encodeStateAsUpdateV2(mixed)), sv: Y.encodeStateVector(mixed) } })
    const merged = Y.mergeUpdates(v1); const merged2 = Y.mergeUpdatesV2(v2)
    const mixedMerge = Y.mergeUpdates(order.map(i => v1[i]))
    const mixedMerge2 = Y.mergeUpdatesV2(order.map(i => v2[i]))
    const once = fresh(); Y.applyUpdate(once, merged)
    const once2 = fresh(); Y.applyUpdateV2(once2, merged2)
    const sv = Y.encodeStateVector(h.docs[r.int(h.docs.length)])
    const cut = Y.encodeStateVector(attempt(() => { const d = fresh(); v1.slice(0, v1.length / 2).forEach(u => Y.applyUpdate(d, u)); return d }))
    return {
      updates: v1.map(b64), updates2: v2.map(b64), order, half, settled: h.settled,
      fix: h.canon, fixSV: b64(sv),
      inOrder: seen(inOrder), inOrder2: seen(inOrder2), mixed: seen(mixed), once: seen(once), once2: seen(once2),
      mid: mid && { state: mid.state, state2: mid.state2, sv: b64(mid.sv) },
      merged: b64(merged), merged2: b64(merged2), mixedMerge: b64(mixedMerge), mixedMerge2: b64(mixedMerge2),
      cut: b64(cut), diff: b64(Y.diffUpdate(merged, cut)), diff2: b64(Y.diffUpdateV2(merged2, cut)),
      stateDiff: b64(Y.encodeStateAsUpdate(inOrder, cut)), stateDiff2: b64(Y.encodeStateAsUpdateV2(inOrder, cut)),
      svOf: b64(Y.encodeStateVectorFromUpdate(mixedMerge)), to2: b64(Y.convertUpdateFormatV1ToV2(merged)), to1: b64(Y.convertUpdateFormatV2ToV1(merged2)),
      snapshot: b64(Y.encodeSnapshot(Y.snapshot(inOrder))), snapshot2: b64(Y.encodeSnapshotV2(Y.snapshot(inOrder)))
    }
  }
  if (q.cmd === 'script') return script(q.seed, q.steps, quiet)
  if (q.cmd === 'apply') {
    const doc = fresh()
    q.updates.forEach(u => q.v2 ? Y.applyUpdateV2(doc, un64(u)) : Y.applyUpdate(doc, un64(u)))
    return seen(doc)
  }
  if (q.cmd === 'canon') {
    const doc = fresh()
    q.updates.forEach(u => Y.applyUpdate(doc, un64(u)))
    return { canon: canon(doc), sv: b64(Y.encodeStateVector(doc)) }
  }
  if (q.cmd === 'ywasm') {
    const W = createRequire(import.meta.url)('ywasm')
    const doc = new W.YDoc({})
    const t = doc.getText('t')
    q.updates.forEach(u => W.applyUpdate(doc, un64(u), null))
    return { sv: b64(W.encodeStateVector(doc)), state: b64(W.encodeStateAsUpdate(doc)), text: t.toString(undefined) }
  }
  return { error: 'unknown command' }
}

const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity })
for await (const line of lines) {
  if (line) process.stdout.write(JSON.stringify(attempt(() => answer(JSON.parse(line)))) + '\n')
}

// npm yjs beside pkg/yjs, on the same inputs in one run, by CPU time:
//   node bench.mjs [--json]
// The trace is the one that $SIGNALBOX_B4_TRACE names, or one of its shape that is made.
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import * as Y from 'yjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'yjs-bench-'))

function cpu (goes, f) {
  let best = Infinity
  for (let i = 0; i < goes; i++) {
    globalThis.gc?.()
    const before = process.cpuUsage()
    f()
    const used = process.cpuUsage(before)
    best = Math.min(best, (used.user + used.system) / 1000)
  }
  return best
}

const read = name => new Uint8Array(fs.readFileSync(path.join(dir, name)))

function unpack (name) {
  const b = fs.readFileSync(path.join(dir, name))
  const out = []
  for (let i = 0; i < b.length;) {
    const n = b.readUInt32LE(i)
    out.push(new Uint8Array(b.subarray(i + 4, i + 4 + n)))
    i += 4 + n
  }
  return out
}

function npm () {
  const trace = JSON.parse(fs.readFileSync(path.join(dir, 'trace.json'), 'utf8'))
  const updates = unpack('updates.bin')
  const conc = unpack('concurrent.bin')
  const state = read('state.bin'); const state2 = read('state2.bin')
  const apply = us => { const d = new Y.Doc(); us.forEach(u => Y.applyUpdate(d, u)); return d }
  let doc
  const out = {}
  out.local_ms = cpu(2, () => {
    doc = new Y.Doc(); doc.clientID = 1
    const t = doc.getText('text')
    for (const [at, del, ins] of trace) {
      doc.transact(() => {
        if (del > 0) t.delete(at, del)
        if (ins !== '') t.insert(at, ins)
      })
    }
  })
  out.same_bytes = Buffer.compare(Y.encodeStateAsUpdate(doc), state) === 0
  out.same_text = doc.getText('text').toString() === fs.readFileSync(path.join(dir, 'text.txt'), 'utf8')
  out.remote_ms = cpu(2, () => apply(updates))
  out.load_ms = cpu(20, () => apply([state]))
  out.encode_ms = cpu(50, () => Y.encodeStateAsUpdate(doc))
  out.encode_v2_ms = cpu(50, () => Y.encodeStateAsUpdateV2(doc))
  out.load_v2_ms = cpu(20, () => Y.applyUpdateV2(new Y.Doc(), state2))
  out.merge_16000_ms = cpu(1, () => Y.mergeUpdates(updates.slice(0, 16000)))
  out.concurrent_ms = cpu(1, () => apply(conc))
  return out
}

try {
  const bin = path.join(dir, 'peer.test')
  const pkg = path.join(here, '..', '..', 'pkg')
  execFileSync('go', ['test', '-c', '-o', bin, './yjs'], { cwd: pkg, stdio: ['ignore', 'ignore', 'inherit'] })
  execFileSync(bin, ['-test.run', '^$', '-test.bench', '^BenchmarkPeer$', '-test.benchtime', '1x'], { cwd: path.join(pkg, 'yjs'), env: { ...process.env, SIGNALBOX_YJS_PEER: dir }, stdio: ['ignore', 'ignore', 'inherit'] })
  const ours = JSON.parse(fs.readFileSync(path.join(dir, 'go.json'), 'utf8'))
  const theirs = npm()
  const ratios = {}
  for (const k of Object.keys(theirs)) if (k.endsWith('_ms')) ratios[k.slice(0, -3)] = theirs[k] / ours[k]
  if (process.argv.includes('--json')) {
    console.log(JSON.stringify({ trace: process.env.SIGNALBOX_B4_TRACE ? 'b4' : 'made', npm_yjs: theirs, pkg_yjs: ours, ratios }))
  } else {
    console.log('CPU in ms'.padEnd(20) + 'npm yjs'.padStart(12) + 'pkg/yjs'.padStart(12) + 'ratio'.padStart(10))
    for (const k of Object.keys(theirs)) {
      if (k.endsWith('_ms')) console.log(k.slice(0, -3).padEnd(20) + theirs[k].toFixed(2).padStart(12) + ours[k].toFixed(2).padStart(12) + (theirs[k] / ours[k]).toFixed(1).padStart(10))
    }
    console.log(`merge of all ${ours.updates}: ${ours.merge_all_ms.toFixed(0)} ms; remote: ${(ours.updates / ours.remote_ms / 1000).toFixed(2)} M updates/s`)
    console.log(`state: ${ours.state_bytes} bytes, same bytes: ${theirs.same_bytes}, same text: ${theirs.same_text}`)
    console.log(`live heap: trace ${ours.heap_trace_kb.toFixed(0)} KB, 50 paragraphs ${ours.heap_paragraphs_kb.toFixed(1)} KB`)
  }
} finally {
  fs.rmSync(dir, { recursive: true })
}

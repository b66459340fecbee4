// Random edits of one npm yjs client, written down so that another implementation can
// make the same edits; with undo, and with updates of somebody else in between.
import * as Y from 'yjs'
import { random } from './histories.mjs'
import { open } from './canon.mjs'

const b64 = u => Buffer.from(u).toString('base64')
const letters = r => 'abcdefgh'.slice(0, 1 + r.int(7)).repeat(1 + r.int(2))
const attrs = r => ({ [r.pick(['b', 'i', 'l'])]: r.pick([true, null, 'red', 3]) })
const plain = r => r.pick([1, 'x', null, true, 2.5, { a: 1, b: [1, 2] }])

function step (r, doc) {
  const t = doc.getText('t'); const a = doc.getArray('a')
  const at = r.int(t.length + 1); const n = 1 + r.int(8)
  switch (r.int(12)) {
    case 0: case 1: case 2: return { o: 'insert', at, s: letters(r) }
    case 3: return { o: 'insertFormatted', at, s: letters(r), attrs: attrs(r) }
    case 4: case 5: return { o: 'delete', at, n: Math.min(n, t.length - at) }
    case 6: return { o: 'format', at, n: Math.min(n, t.length - at), attrs: attrs(r) }
    case 7: return { o: 'embed', at, v: r.pick([{ img: 1 }, 7]) }
    case 8: return { o: 'set', k: r.pick(['k', 'l']), v: plain(r) }
    case 9: return { o: 'unset', k: r.pick(['k', 'l']) }
    case 10: return { o: r.pick(['push', 'list']), at: r.int(a.length + 1), vs: [plain(r), plain(r)] }
    default: { const i = r.int(a.length + 1); return { o: 'unlist', at: i, n: Math.min(1 + r.int(2), a.length - i) } }
  }
}

function run (doc, um, s) {
  const t = doc.getText('t'); const a = doc.getArray('a'); const m = doc.getMap('m')
  switch (s.o) {
    case 'insert': t.insert(s.at, s.s); break
    case 'insertFormatted': t.insert(s.at, s.s, { ...s.attrs }); break
    case 'delete': t.delete(s.at, s.n); break
    case 'format': t.format(s.at, s.n, { ...s.attrs }); break
    case 'embed': t.insertEmbed(s.at, s.v); break
    case 'set': m.set(s.k, s.v); break
    case 'unset': m.delete(s.k); break
    case 'push': a.push(s.vs); break
    case 'list': a.insert(s.at, s.vs); break
    case 'unlist': a.delete(s.at, s.n); break
    case 'undo': um.undo(); break
    case 'redo': um.redo(); break
    case 'apply': Y.applyUpdate(doc, new Uint8Array(Buffer.from(s.u, 'base64')), 'remote'); break
  }
}

export function script (seed, steps, quiet) {
  const r = random(seed)
  const doc = quiet(open(new Y.Doc({ guid: 'd' }))); doc.clientID = 5
  const other = quiet(open(new Y.Doc({ guid: 'd' }))); other.clientID = r.pick([3, 9])
  const um = new Y.UndoManager([doc.getText('t'), doc.getArray('a'), doc.getMap('m')], { captureTimeout: 0 })
  const groups = []
  for (let i = 0; i < steps; i++) {
    let group
    const x = r.next()
    if (x < 0.12) group = [{ o: 'undo' }]
    else if (x < 0.18) group = [{ o: 'redo' }]
    else if (x < 0.3) {
      if (r.chance(0.5)) Y.applyUpdate(other, Y.encodeStateAsUpdate(doc))
      for (let k = 1 + r.int(3); k > 0; k--) run(other, null, step(r, other))
      group = [{ o: 'apply', u: b64(Y.encodeStateAsUpdate(other, Y.encodeStateVector(doc))) }]
    }
    if (group) run(doc, um, group[0])
    else {
      group = []
      doc.transact(() => {
        for (let k = r.chance(0.3) ? 3 : 1; k > 0; k--) { const s = step(r, doc); group.push(s); run(doc, um, s) }
      })
    }
    groups.push({ steps: group, state: b64(Y.encodeStateAsUpdate(doc)) })
  }
  return { groups, state2: b64(Y.encodeStateAsUpdateV2(doc)), text: doc.getText('t').toString() }
}

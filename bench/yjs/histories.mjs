// Random histories of npm yjs clients, from a seed.
import * as Y from 'yjs'
import { open, canon } from './canon.mjs'

export function random (seed) {
  let a = seed >>> 0
  const next = () => {
    a = (a + 0x6D2B79F5) >>> 0
    let t = a
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
  const int = n => Math.floor(next() * n)
  return { next, int, pick: xs => xs[int(xs.length)], chance: p => next() < p }
}

const words = ['a', 'b ', 'hello', ' world', 'x\ny', '😀', 'é', '日本', '👨‍👩‍👧', 'e\u0301', '🇩🇪', 'ß', '\u0000', '"q"', '\\']

function odd (r, depth = 0) {
  switch (r.int(depth > 2 ? 12 : 15)) {
    case 0: return undefined
    case 1: return null
    case 2: return NaN
    case 3: return -0
    case 4: return r.int(2 ** 31)
    case 5: return -r.int(1000)
    case 6: return r.pick([1.5, 0.1, 1e300, 2 ** 40, -(2 ** 53), Infinity, -Infinity, 5e-324, 1e21, 1e-7, 2 ** 31, -(2 ** 31), 0])
    case 7: return r.chance(0.5)
    case 8: return r.pick(words)
    case 9: return r.pick(['', '\ud83d', '\ude00x', 'l'.repeat(300), '😀'.repeat(40)])
    case 10: return r.pick([0n, -1n, 2n ** 62n])
    case 11: return new Uint8Array([r.int(256), r.int(256)])
    case 12: return Array.from({ length: r.int(3) }, () => odd(r, depth + 1))
    default: {
      const o = {}
      for (let i = r.int(4); i > 0; i--) o[r.pick(['k', 'z', 'a', '10', '2', 'é', ''])] = odd(r, depth + 1)
      return o
    }
  }
}

// Values that JSON can carry, for formats and embeds in encoding v1.
function plain (r, depth = 0) {
  switch (r.int(depth > 1 ? 5 : 7)) {
    case 0: return null
    case 1: return r.chance(0.5)
    case 2: return r.pick([0, 1, -1, 1.25, 1e21, 1e-7, 123456789012])
    case 3: return r.pick(words)
    case 4: return r.pick(['\ud83d', 'x'.repeat(130), ''])
    case 5: return [plain(r, depth + 1), plain(r, depth + 1)]
    default: return { href: r.pick(words), 7: plain(r, depth + 1), n: r.int(3) }
  }
}

const text = r => {
  let s = ''
  for (let i = 1 + r.int(3); i > 0; i--) s += r.pick(words)
  if (r.chance(0.03)) s += 'long '.repeat(400)
  if (r.tears && r.chance(0.05)) s += '\ud83d'
  return s
}

const marks = ['bold', 'italic', 'link', 'bold--YWJjZGVm']
const mark = r => ({ [r.pick(marks)]: r.pick([true, null, { href: 'u' }, {}, 'red', { href: 'v' }]) })

function node (r, depth = 0) {
  switch (r.int(depth > 2 ? 2 : 5)) {
    case 0: return new Y.XmlText(text(r))
    case 1: { const h = new Y.XmlHook('hook'); h.set('k', odd(r)); return h }
    default: {
      const e = new Y.XmlElement(r.pick(['p', 'DIV', 'h1', 'li']))
      for (let i = r.int(3); i > 0; i--) e.setAttribute(r.pick(['level', 'id', 'x']), odd(r))
      e.insert(0, Array.from({ length: r.int(3) }, () => node(r, depth + 1)))
      return e
    }
  }
}

function shared (r, depth = 0) {
  switch (r.int(4)) {
    case 0: { const m = new Y.Map(); for (let i = r.int(3); i > 0; i--) m.set(r.pick(['k', 'l']), content(r, depth + 1)); return m }
    case 1: { const a = new Y.Array(); a.insert(0, items(r, depth + 1)); return a }
    case 2: return new Y.Text(text(r))
    default: return node(r, 1)
  }
}

const content = (r, depth = 0) => {
  if (r.chance(0.25) && depth < 2) return shared(r, depth)
  if (r.chance(0.04)) return new Y.Doc({ guid: 'g' + r.int(9), meta: r.pick([null, { a: 1 }]), autoLoad: r.chance(0.3), gc: r.chance(0.7) })
  return odd(r)
}

const items = (r, depth = 0) => Array.from({ length: 1 + r.int(3) }, () => {
  const v = content(r, depth)
  return typeof v === 'bigint' || v === undefined ? 1 : v
})

// All types that are alive, root types more often than others.
function pickType (doc, r) {
  const all = []
  const walk = t => {
    all.push(t)
    for (let i = t._start; i; i = i.right) if (!i.deleted && i.content.type) walk(i.content.type)
    t._map.forEach(i => { if (!i.deleted && i.content.type) walk(i.content.type) })
  }
  doc.share.forEach(walk)
  return r.chance(0.4) ? doc.share.get(r.pick(['t', 'm', 'a', 'x'])) : r.pick(all)
}

// Replicas of npm yjs do not converge when an edit tears a surrogate pair. Most
// histories therefore do not.
function border (t, at) {
  const s = t.toDelta().map(op => typeof op.insert === 'string' ? op.insert : '.').join('')
  const c = s.charCodeAt(at)
  return c >= 0xdc00 && c < 0xe000 ? at + 1 : at
}

function editText (t, r) {
  let at = r.int(t.length + 1)
  let n = Math.min(t.length - at, 1 + r.int(6))
  if (!r.tears) {
    const end = border(t, at + n)
    at = border(t, at)
    n = end - at
  }
  switch (r.int(9)) {
    case 0: case 1: case 2: t.insert(at, text(r)); break
    case 3: t.insert(at, text(r), mark(r)); break
    case 4: case 5: if (n > 0) t.delete(at, n); break
    case 6: case 7: if (n > 0) t.format(at, n, mark(r)); break
    default: t.insertEmbed(at, r.chance(0.3) ? shared(r, 1) : (plain(r) || { image: 1 }), r.chance(0.3) ? mark(r) : undefined)
  }
}

function editList (t, r, make) {
  const at = r.int(t.length + 1)
  if (r.chance(0.35) && t.length > 0) t.delete(Math.min(at, t.length - 1), Math.min(t.length - Math.min(at, t.length - 1), 1 + r.int(3)))
  else if (r.chance(0.3)) t.push(make())
  else t.insert(at, make())
}

function edit (doc, r) {
  const t = pickType(doc, r)
  if (t instanceof Y.Text) {
    if (r.chance(0.05)) t.setAttribute('dir', odd(r))
    else editText(t, r)
  } else if (t instanceof Y.Map) {
    if (r.chance(0.2)) t.delete(r.pick(['k', 'l', 'm']))
    else t.set(r.pick(['k', 'l', 'm', '7', '__proto__x']), t instanceof Y.XmlHook ? odd(r) : content(r))
  } else if (t instanceof Y.XmlFragment) {
    if (t instanceof Y.XmlElement && r.chance(0.3)) {
      if (r.chance(0.3)) t.removeAttribute(r.pick(['level', 'id']))
      else t.setAttribute(r.pick(['level', 'id', 'x']), odd(r))
    } else editList(t, r, () => Array.from({ length: 1 + r.int(2) }, () => node(r)))
  } else {
    editList(t, r, () => items(r))
  }
}

// quiet keeps a replica from cleaning up formats behind remote edits: what it does then
// is an edit of its own, and replicas that do it diverge until they have met again.
export function quiet (doc) {
  doc.on('afterTransaction', tr => { tr._needFormattingCleanup = false })
  return doc
}

export function history (seed, steps) {
  const r = random(seed)
  r.tears = seed % 5 === 0
  const n = 2 + r.int(4)
  const v1 = []; const v2 = []
  const docs = []; const inbox = []; const undo = []
  for (let i = 0; i < n; i++) {
    const doc = open(new Y.Doc({ guid: 'd' }))
    doc.clientID = r.chance(0.1) ? 2 ** 40 + r.int(1000) * 7 + i : (r.chance(0.3) ? i + 1 : r.int(2 ** 32 - 10) + i)
    doc.on('update', (u, o, d, tr) => { if (tr.local) { v1.push(u); inbox.forEach((q, j) => { if (j !== i) q.push(u) }) } })
    doc.on('updateV2', (u, o, d, tr) => { if (tr.local) v2.push(u) })
    docs.push(doc); inbox.push([])
    undo.push(r.chance(0.3) ? new Y.UndoManager([...doc.share.values()], { captureTimeout: 0 }) : null)
  }
  for (let s = 0; s < steps; s++) {
    const i = r.int(n)
    const doc = docs[i]
    if (r.chance(0.3)) {
      const q = inbox[i]
      const part = q.splice(0, 1 + r.int(q.length))
      if (part.length > 0) {
        if (r.chance(0.2)) Y.applyUpdate(doc, Y.mergeUpdates(part))
        else part.forEach(u => Y.applyUpdate(doc, u))
      }
    } else if (undo[i] && r.chance(0.15)) {
      if (r.chance(0.6)) undo[i].undo(); else undo[i].redo()
    } else {
      doc.transact(() => { for (let k = 1 + (r.chance(0.2) ? r.int(4) : 0); k > 0; k--) edit(doc, r) })
    }
  }
  for (let round = 0; round < 30 && inbox.some(q => q.length > 0); round++) {
    for (let i = 0; i < n; i++) inbox[i].splice(0).forEach(u => Y.applyUpdate(docs[i], u))
  }
  return { r, docs, v1, v2, settled: !r.tears && inbox.every(q => q.length === 0), canon: canon(docs[0]) }
}

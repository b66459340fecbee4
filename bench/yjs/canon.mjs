// One text for the content of a document, written the same way by pkg/yjs's tests.
import * as Y from 'yjs'

const hex = u => Buffer.from(u).toString('hex')
// Halves of surrogate pairs, which only their author sees, become U+FFFD.
const text = s => JSON.stringify(s.toWellFormed())
const sorted = o => Object.keys(o).sort()

export function value (v) {
  if (v === undefined) return 'u'
  if (v === null) return 'n'
  switch (typeof v) {
    case 'boolean': return v ? 't' : 'f'
    case 'number': return '#' + (Object.is(v, -0) ? '-0' : String(v))
    case 'bigint': return 'b' + v
    case 'string': return text(v)
  }
  if (v instanceof Uint8Array) return 'x' + hex(v)
  if (Array.isArray(v)) return '[' + v.map(value).join(',') + ']'
  if (v instanceof Y.Doc) return 'D' + text(v.guid)
  if (v instanceof Y.XmlHook) return 'H' + text(v.hookName) + entries(v._map)
  if (v instanceof Y.XmlText) return 'X' + delta(v) + entries(v._map)
  if (v instanceof Y.XmlElement) return 'E' + text(v.nodeName) + entries(v._map) + list(v)
  if (v instanceof Y.XmlFragment) return 'F' + list(v)
  if (v instanceof Y.Text) return 'T' + delta(v) + entries(v._map)
  if (v instanceof Y.Map) return 'M' + entries(v._map)
  if (v instanceof Y.Array) return 'A' + list(v)
  return '{' + Object.keys(v).map(k => text(k) + ':' + value(v[k])).join(',') + '}'
}

const list = t => '[' + t.toArray().map(value).join(',') + ']'

function entries (m) {
  const live = [...m.entries()].filter(([, it]) => !it.deleted)
  live.sort((a, b) => a[0] < b[0] ? -1 : 1)
  return '{' + live.map(([k, it]) => text(k) + ':' + value(it.content.getContent()[it.length - 1])).join(',') + '}'
}

const delta = t => '(' + t.toDelta().map(op => value(op.insert) +
  (op.attributes ? '@{' + sorted(op.attributes).map(k => text(k) + ':' + value(op.attributes[k])).join(',') + '}' : '')).join(';') + ')'

// Roots are typed by the first letter of their names.
export function open (doc) {
  doc.getText('t'); doc.getMap('m'); doc.getArray('a'); doc.getXmlFragment('x')
  return doc
}

export const canon = doc => ['t', 'm', 'a', 'x'].map(n => value(doc.share.get(n))).join('\n')

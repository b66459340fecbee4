// Unmodified npm clients of live documents, controlled from outside: each line of stdin is a command
// in JSON, and is answered by a line of stdout with the same n. Commands run concurrently, so that
// one can wait for the effect of another.
//
//   {"n":1,"do":"open","id":"a","kind":"y-websocket","url":"ws://…/ws/documents","name":"…","params":{}}
//   {"n":2,"do":"open","id":"b","kind":"hocuspocus4","url":"ws://…/ws/hocuspocus","name":"…","socket":"s"}
//   {"n":3,"do":"insert","id":"a","at":0,"text":"hello"}        {"do":"delete","id":"a","at":0,"count":2}
//   {"n":4,"do":"until","id":"b","text":"hello","synced":true}  waits until the client has this status
//   {"n":5,"do":"state","id":"a"}                               returns the status
//   {"n":6,"do":"aware","id":"a","state":{"name":"A"}}          null: nobody
//   {"n":7,"do":"offline","id":"a"}  {"do":"online",…}  {"do":"cut",…}  {"do":"close",…}  {"do":"end",…}
//   {"n":8,"do":"block","id":"a","text":"a paragraph"}          {"do":"keys","id":"a","behind":"a para","text":"llel "}
//
// offline and online are requested by the client; cut breaks its connection; end closes the document
// and the connection. Hocuspocus clients with the same socket share a connection. insert, type and
// delete change the text "t"; block and keys the XML fragment "default", which editors show: keys
// types after a text, key by key.
import { createInterface } from 'node:readline'
import WebSocket from 'ws'
import * as Y from 'yjs'
import { WebsocketProvider } from 'y-websocket'

const clients = new Map()
const sockets = new Map()

// recorder is a ws that records the ends of its connections.
const recorder = (ends) => class extends WebSocket {
  constructor (url, protocols) {
    super(url, protocols)
    this.on('close', (code, reason) => ends.push({ code, reason: reason.toString() }))
    this.on('error', () => {}) // a close follows
  }
}

async function open (q) {
  const doc = new Y.Doc()
  if (q.client) doc.clientID = q.client
  const c = { doc, ends: [], told: [], lapsed: [] }
  if (q.kind === 'y-websocket') {
    c.provider = new WebsocketProvider(q.url, q.name, doc, {
      params: q.params ?? {}, WebSocketPolyfill: recorder(c.ends), disableBc: true, maxBackoffTime: 300, connect: q.connect ?? true
    })
    c.offline = () => c.provider.disconnect()
    c.online = () => c.provider.connect()
    c.cut = () => c.provider.ws.terminate()
    c.unsynced = () => 0
  } else {
    await hocuspocus(c, q)
  }
  // Peers that the client timed out, whose removal was not announced.
  c.provider.awareness?.on('change', ({ removed }, origin) => { if (origin === 'timeout') c.lapsed.push(...removed) })
  c.close = () => c.provider.destroy()
  c.end = () => { c.close(); c.hangUp?.() }
  clients.set(q.id, c)
}

async function hocuspocus (c, q) {
  const { HocuspocusProvider, HocuspocusProviderWebsocket } = await import(q.kind)
  const key = q.socket ?? q.id
  let s = sockets.get(key)
  if (!s) {
    s = { ends: [] }
    const url = q.url + '?' + new URLSearchParams(q.params ?? {})
    s.ws = new HocuspocusProviderWebsocket({ url, WebSocketPolyfill: recorder(s.ends), delay: 100, minDelay: 100, maxDelay: 300 })
    sockets.set(key, s)
  }
  c.ends = s.ends
  c.provider = new HocuspocusProvider({
    name: q.name,
    document: c.doc,
    token: q.token ?? 'any',
    websocketProvider: s.ws,
    broadcast: false,
    sessionAwareness: q.session ?? false,
    onAuthenticated: (e) => c.told.push({ authenticated: c.provider.authorizedScope }),
    onAuthenticationFailed: (e) => c.told.push({ denied: e.reason }),
    onStateless: (e) => c.told.push({ stateless: e.payload })
  })
  c.provider.on('close', (e) => c.told.push({ closed: e.event.reason?.toString() ?? '' }))
  c.provider.attach?.()
  c.offline = () => s.ws.disconnect()
  c.online = () => s.ws.connect()
  c.cut = () => s.ws.webSocket.terminate()
  c.unsynced = () => c.provider.unsyncedChanges
  c.hangUp = () => { s.ws.destroy(); sockets.delete(key) }
}

// plain is the text of a node, with the same positions.
const plain = (t) => t.toDelta().map((op) => typeof op.insert === 'string' ? op.insert : '\ufffc').join('')

// find returns the first text below a node that contains a string.
function find (node, what) {
  if (node instanceof Y.XmlText) return plain(node).includes(what) ? node : null
  for (const child of node.toArray()) {
    const found = find(child, what)
    if (found) return found
  }
  return null
}

// keys types a text after another one, a key at a time, since others may write meanwhile.
async function keys (c, behind, text) {
  let type = find(c.doc.getXmlFragment('default'), behind)
  if (!type) throw new Error(`there is no ${JSON.stringify(behind)} in ${c.doc.getXmlFragment('default')}`)
  let at = plain(type).indexOf(behind) + behind.length
  for (const key of text) {
    type.insert(at, key)
    const caret = Y.createRelativePositionFromTypeIndex(type, at + key.length, -1)
    await new Promise((resolve) => setTimeout(resolve, 3))
    const place = Y.createAbsolutePositionFromRelativePosition(caret, c.doc)
    type = place.type
    at = place.index
  }
}

// caret returns the position of a cursor, if it is in a text.
function caret (c, cursor) {
  const place = Y.createAbsolutePositionFromRelativePosition(Y.createRelativePositionFromJSON(cursor.anchor), c.doc)
  return place?.type instanceof Y.XmlText ? { text: plain(place.type), at: place.index } : null
}

// canonical is the state in the encoding of a new client that loads it: text that was typed in pieces
// is stored in pieces by clients that received them, and merged by clients that load it.
function canonical (c) {
  const loaded = new Y.Doc()
  Y.applyUpdate(loaded, Y.encodeStateAsUpdate(c.doc))
  return Buffer.from(Y.encodeStateAsUpdate(loaded)).toString('base64')
}

function state (c) {
  const peers = {}
  for (const [client, s] of c.provider.awareness?.getStates() ?? []) peers[client] = s.cursor ? { ...s, caret: caret(c, s.cursor) } : s
  return {
    client: c.doc.clientID,
    text: c.doc.getText('t').toString(),
    xml: c.doc.getXmlFragment('default').toString(),
    synced: c.provider.synced,
    unsynced: c.unsynced(),
    peers,
    update: Buffer.from(Y.encodeStateAsUpdate(c.doc)).toString('base64'),
    vector: Buffer.from(Y.encodeStateVector(c.doc)).toString('base64'),
    scope: c.provider.authorizedScope ?? '',
    ends: c.ends,
    told: c.told,
    lapsed: c.lapsed
  }
}

// holds reports whether a client has the status q.
function holds (c, q) {
  const s = state(c)
  return (q.text === undefined || s.text === q.text) &&
    (q.synced === undefined || s.synced === q.synced) &&
    (q.unsynced === undefined || s.unsynced === q.unsynced) &&
    (q.settled === undefined || s.unsynced <= 0) && // version 2 counts below 0 after typing while disconnected
    (q.length === undefined || s.text.length === q.length) &&
    (q.names === undefined || Object.values(s.peers).map((p) => p.name ?? '').filter((n) => n !== '').sort().join() === q.names) &&
    (q.ended === undefined || s.ends.some((e) => e.code === q.ended)) &&
    (q.ends === undefined || s.ends.length >= q.ends) &&
    (q.told === undefined || s.told.some((t) => q.told in t)) &&
    (q.has === undefined || q.has.every((h) => s.xml.includes(h))) &&
    (q.writes === undefined || Object.values(s.peers).some((p) => p.user?.name === q.writes && p.caret)) &&
    (q.users === undefined || Object.values(s.peers).map((p) => p.user?.name ?? '').filter((n) => n !== '').sort().join() === q.users)
}

const until = (c, q) => new Promise((resolve) => {
  const look = () => holds(c, q) && (clearInterval(timer), resolve())
  const timer = setInterval(look, 5)
  look()
})

async function run (q) {
  if (q.do === 'open') return open(q)
  const c = clients.get(q.id)
  const text = c.doc.getText('t')
  switch (q.do) {
    case 'insert': return text.insert(Math.min(q.at ?? 0, text.length), q.text)
    case 'type': for (let i = 0; i < q.count; i++) text.insert(text.length, q.text); return
    case 'delete': return text.delete(q.at, q.count)
    case 'until': await until(c, q); return state(c)
    case 'state': return state(c)
    case 'canonical': return { ...state(c), canonical: canonical(c) }
    case 'block': {
      const p = new Y.XmlElement('paragraph')
      p.insert(0, [new Y.XmlText(q.text)])
      const blocks = c.doc.getXmlFragment('default')
      return blocks.insert(Math.min(q.at ?? blocks.length, blocks.length), [p])
    }
    case 'keys': return keys(c, q.behind, q.text)
    case 'aware': return c.provider.awareness.setLocalState(q.state)
    case 'stateless': return c.provider.sendStateless(q.text)
    case 'forceSync': return c.provider.forceSync()
    case 'offline': return c.offline()
    case 'online': c.online(); return
    case 'cut': return c.cut()
    case 'close': return c.close()
    case 'end': return c.end()
  }
  throw new Error(`there is no command ${q.do}`)
}

const answer = (a) => process.stdout.write(JSON.stringify(a) + '\n')
console.warn = console.error = (...a) => process.stderr.write(a.join(' ') + '\n')
process.on('uncaughtException', (e) => answer({ n: 0, error: String(e.stack ?? e) }))

for await (const line of createInterface({ input: process.stdin })) {
  const q = JSON.parse(line)
  run(q).then((r) => answer({ n: q.n, ...r }), (e) => answer({ n: q.n, error: String(e.stack ?? e) }))
}
process.exit(0)

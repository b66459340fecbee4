// Prints the messages of the npm packages as JSON, for the tests of the Go package
// document-sync/internal/yproto, which compare them with testdata/golden.json and rewrite that with
// -update.
//
// Each message has its bytes in hex and their meaning.
import { readFileSync } from 'node:fs'
import * as encoding from 'lib0/encoding'
import * as Y from 'yjs'
import { Awareness, encodeAwarenessUpdate } from 'y-protocols/awareness'
import { writePermissionDenied } from 'y-protocols/auth'
import { writeSyncStep1, writeSyncStep2, writeUpdate } from 'y-protocols/sync'
import { messageAuth, messageAwareness, messageQueryAwareness, messageSync } from 'y-websocket'
import { OutgoingMessage } from '@hocuspocus/server'

const hex = (b) => Buffer.from(b).toString('hex')
const text = (s) => hex(Buffer.from(s, 'utf8'))
const out = []

function sample () {
  const doc = new Y.Doc()
  doc.clientID = 7
  doc.getText('t').insert(0, 'häß🙂')
  return doc
}
const doc = sample()
const vector = Y.encodeStateVector(doc)
const state = Y.encodeStateAsUpdate(doc)
const long = (() => {
  const d = new Y.Doc()
  d.clientID = 8
  d.getText('t').insert(0, 'x'.repeat(16400)) // lengths of three bytes
  return d
})()
const awareness = new Awareness(doc)
awareness.setLocalState({ user: { name: 'Zoë', color: '#abc' } })
const presence = encodeAwarenessUpdate(awareness, [7])

// y-protocols, as framed by y-websocket and its server.
function plain (name, kind, write, payload = '') {
  const e = encoding.createEncoder()
  write(e)
  out.push({ name, envelope: 'y-protocols', hex: hex(encoding.toUint8Array(e)), kind, payload })
}
const sync = (write) => (e) => { encoding.writeVarUint(e, messageSync); write(e) }
plain('step 1', 'Step1', sync((e) => writeSyncStep1(e, doc)), hex(vector))
plain('step 2', 'Step2', sync((e) => writeSyncStep2(e, doc)), hex(state))
plain('step 2 of nothing', 'Step2', sync((e) => writeSyncStep2(e, new Y.Doc())), '0000')
plain('update', 'Update', sync((e) => writeUpdate(e, state)), hex(state))
plain('long update', 'Update', sync((e) => writeUpdate(e, Y.encodeStateAsUpdate(long))), hex(Y.encodeStateAsUpdate(long)))
plain('awareness', 'Awareness', (e) => { encoding.writeVarUint(e, messageAwareness); encoding.writeVarUint8Array(e, presence) }, hex(presence))
plain('query awareness', 'QueryAwareness', (e) => encoding.writeVarUint(e, messageQueryAwareness))
plain('denied', 'Denied', (e) => { encoding.writeVarUint(e, messageAuth); writePermissionDenied(e, 'read only: häß🙂') }, text('read only: häß🙂'))

// Hocuspocus, from the server.
function served (name, kind, make, more = {}) {
  const m = new OutgoingMessage('page')
  make(m)
  out.push({ name, envelope: 'hocuspocus', from: 'server', document: 'page', hex: hex(m.toUint8Array()), kind, payload: '', ...more })
}
served('step 1', 'Step1', (m) => m.createSyncMessage().writeFirstSyncStepFor(doc), { payload: hex(vector) })
served('step 1 in a reply', 'Step1', (m) => m.createSyncReplyMessage().writeFirstSyncStepFor(doc), { payload: hex(vector), reply: true })
served('update', 'Update', (m) => m.createSyncMessage().writeUpdate(state), { payload: hex(state) })
served('awareness', 'Awareness', (m) => m.createAwarenessUpdateMessage(awareness), { payload: hex(presence) })
served('query awareness', 'QueryAwareness', (m) => m.writeQueryAwareness())
served('token wanted', 'Token', (m) => m.writeTokenSyncRequest())
served('authenticated', 'Authenticated', (m) => m.writeAuthenticated(false), { payload: text('read-write') })
served('authenticated, read-only', 'Authenticated', (m) => m.writeAuthenticated(true), { payload: text('readonly') })
served('denied', 'Denied', (m) => m.writePermissionDenied('no such page: häß🙂'), { payload: text('no such page: häß🙂') })
served('stateless', 'Stateless', (m) => m.writeStateless('{"ä":1}'), { payload: text('{"ä":1}') })
served('broadcast stateless', 'BroadcastStateless', (m) => m.writeBroadcastStateless('hi'), { payload: text('hi') })
served('stored', 'SyncStatus', (m) => m.writeSyncStatus(true), { stored: true })
served('not stored', 'SyncStatus', (m) => m.writeSyncStatus(false))
served('close', 'Close', (m) => m.writeCloseMessage('deleted'), { payload: text('deleted') })

// Hocuspocus, from the provider: the messages of each major version as recorded, in this order.
class Recorder extends EventTarget {
  static all = []
  constructor () {
    super()
    this.readyState = 1
    this.sent = []
    Recorder.all.push(this)
    queueMicrotask(() => this.dispatchEvent(new Event('open')))
  }

  send (b) { this.sent.push(hex(b)) }
  close () {}
  receive (b) { this.dispatchEvent(Object.assign(new Event('message'), { data: b.buffer.slice(b.byteOffset, b.byteOffset + b.byteLength) })) }
}
const release = (version) => JSON.parse(readFileSync(`node_modules/hocuspocus${version}/package.json`)).version
const turn = () => new Promise((resolve) => setTimeout(resolve, 5))

async function provided (version, document = 'page') {
  const { HocuspocusProvider, HocuspocusProviderWebsocket } = await import('hocuspocus' + version)
  const doc = sample()
  const awareness = new Awareness(doc)
  awareness.setLocalState({ user: 'Zoë' })
  const presence = () => hex(encodeAwarenessUpdate(awareness, [7]))
  const socket = new HocuspocusProviderWebsocket({ url: 'ws://nowhere', WebSocketPolyfill: Recorder })
  const session = document !== 'page'
  const provider = new HocuspocusProvider({ name: 'page', document: doc, awareness, token: 'tökén', websocketProvider: socket, broadcast: false, sessionAwareness: session })
  if (session) provider.sessionId = document.split('\0')[1]
  if (provider.attach) provider.attach()
  await turn()
  const want = [
    { kind: 'Token', payload: text('tökén'), version: version === 4 ? text(release(4)) : '' },
    { kind: 'Step1', payload: hex(Y.encodeStateVector(doc)) },
    { kind: 'Awareness', payload: presence() }
  ]
  const wire = Recorder.all.at(-1)
  wire.receive(new OutgoingMessage(document).writeAuthenticated(false).toUint8Array())
  let update
  doc.once('update', (u) => { update = u })
  doc.getText('t').insert(0, 'more ')
  want.push({ kind: 'Update', payload: hex(update) })
  wire.receive(new OutgoingMessage(document).createSyncMessage().writeFirstSyncStepFor(new Y.Doc()).toUint8Array())
  want.push({ kind: 'Step2', payload: hex(Y.encodeStateAsUpdate(doc)) })
  provider.sendStateless('hi')
  want.push({ kind: 'Stateless', payload: text('hi') })
  if (version === 4) {
    wire.receive(Uint8Array.of(9))
    want.push({ kind: 'Pong', payload: '', document: '' })
  }
  const before = wire.sent.length
  if (before !== want.length) throw new Error(`version ${version} sent ${before} messages, ${want.length} are expected`)
  provider.destroy()
  await turn()
  const close = wire.sent.slice(before).find((m) => m.endsWith('07'))
  want.push({ kind: 'Close', payload: '' })
  const sent = [...wire.sent.slice(0, before), close]
  sent.forEach((m, i) => out.push({ name: `provider ${version}${session ? ' with a session' : ''}: ${want[i].kind}`, envelope: 'hocuspocus', from: `provider ${version}`, document, hex: m, ...want[i] }))
  socket.destroy()
}
await provided(2)
await provided(3)
await provided(4)
await provided(4, 'page\0session1')

process.stdout.write(JSON.stringify(out, null, 1) + '\n', () => process.exit(0))

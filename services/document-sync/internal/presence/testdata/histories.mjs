// Writes histories.json: what y-protocols makes of awareness updates. Each history has
// updates, and what a server that has applied them tells about everybody in the end.
//
//   npm install y-protocols@1.0.7 yjs && node histories.mjs > histories.json
import * as Y from 'yjs'
import { Awareness, applyAwarenessUpdate, encodeAwarenessUpdate } from 'y-protocols/awareness'
import * as encoding from 'lib0/encoding'

let seed = 1
const random = n => (seed = (seed * 48271) % 0x7fffffff) % n

const states = [
  null, null, {}, { user: { name: 'Ada', color: '#ff0000' } }, { user: { name: 'Zoë 👩‍🔬' }, cursor: { anchor: 1, head: null } },
  [1, 2.5, 'x'], 'text', { nested: [{ a: [[]] }] }
]

const histories = []
for (let i = 0; i < 40; i++) {
  const server = new Awareness(new Y.Doc())
  server.setLocalState(null)
  const clients = [1, 127, 128, 4294967295, 9007199254740991].slice(0, 1 + random(5))
  const updates = []
  for (let j = 0; j < 20; j++) {
    const encoder = encoding.createEncoder()
    const n = random(4)
    encoding.writeVarUint(encoder, n)
    for (let k = 0; k < n; k++) {
      encoding.writeVarUint(encoder, clients[random(clients.length)])
      encoding.writeVarUint(encoder, random(12))
      encoding.writeVarString(encoder, JSON.stringify(states[random(states.length)]))
    }
    const update = encoding.toUint8Array(encoder)
    applyAwarenessUpdate(server, update, null)
    updates.push(Buffer.from(update).toString('hex'))
  }
  const there = clients.filter(c => server.states.has(c))
  histories.push({ updates, present: there.length, all: there.length ? Buffer.from(encodeAwarenessUpdate(server, there)).toString('hex') : '' })
  server.destroy()
}
process.stdout.write(JSON.stringify(histories, null, ' ') + '\n')
process.exit(0)

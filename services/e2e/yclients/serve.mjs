// Serves documents with an unmodified server from npm, for comparison in benchmarks:
// node serve.mjs y-websocket|hocuspocus PORT.
import http from 'node:http'
import { Server } from '@hocuspocus/server'
import { setupWSConnection } from '@y/websocket-server/utils'
import { WebSocketServer } from 'ws'

const [kind, port] = process.argv.slice(2)
switch (kind) {
  case 'y-websocket': {
    const server = http.createServer()
    const sockets = new WebSocketServer({ noServer: true })
    sockets.on('connection', setupWSConnection)
    server.on('upgrade', (request, socket, head) =>
      sockets.handleUpgrade(request, socket, head, ws => sockets.emit('connection', ws, request)))
    server.listen(Number(port), '127.0.0.1')
    break
  }
  case 'hocuspocus':
    await new Server({ address: '127.0.0.1', port: Number(port), quiet: true }).listen()
    break
  default:
    throw new Error(`there is no server ${kind}: y-websocket or hocuspocus`)
}

// The oracle: reads one JSON command a line, answers with one JSON line.
//   {"cmd":"schema","options":o}           the schema of an editor
//   {"cmd":"open","state":b64,"options":o} opens an editor on a document, in place of the one before
//   {"cmd":"apply","update":b64}           applies an update of somebody else
//   {"cmd":"edit","steps":[[name,...]]}    runs commands of the editor, "select" and "type" among them
//   {"cmd":"position","at":json}           where a relative position is, and the text before it
//   {"cmd":"relative","find":text}         the relative position behind text
// All of them but the last answer with what the editor shows, and with what it wrote in
// answer. Options: inlineImages, nestedTasks, unextended (TipTap's own image and code), own (nodes and marks), autolink (true), client, field.
import readline from 'node:readline'
import * as Y from 'yjs'
import { open, close, position, relative, schema, turns } from './editor.mjs'

const b64 = u => Buffer.from(u).toString('base64')
const un64 = s => new Uint8Array(Buffer.from(s, 'base64'))

let now // the open editor

async function look () {
  await turns()
  const wrote = now.wrote.splice(0)
  return {
    json: now.editor.getJSON(), xml: now.doc.getXmlFragment('default').toString(), state: b64(Y.encodeStateAsUpdate(now.doc)),
    wrote: wrote.map(b64), merged: wrote.length > 0 ? b64(Y.mergeUpdates(wrote)) : '', problems: now.problems.splice(0)
  }
}

// behind returns the position behind a text in the first block that has it.
function behind (text) {
  let found = -1
  now.editor.state.doc.descendants((node, pos) => {
    if (!node.isTextblock) return
    const i = node.textBetween(0, node.content.size, undefined, '\ufffc').indexOf(text)
    if (i >= 0 && found < 0) found = pos + 1 + i + text.length
  })
  if (found < 0) throw new Error(`no ${JSON.stringify(text)} in the editor`)
  return found
}

function run ([name, ...args]) {
  const { editor } = now
  if (name === 'select') {
    const [from, to] = args.map(behind)
    return editor.commands.setTextSelection(to === undefined ? from : { from, to })
  }
  if (name === 'type') {
    const { from, to } = editor.state.selection
    return editor.view.dispatch(editor.state.tr.insertText(args[0], from, to))
  }
  if (editor.commands[name](...args) === false) throw new Error(`the editor cannot ${name}`)
}

async function answer (q) {
  switch (q.cmd) {
    case 'schema':
      return schema(q.options)
    case 'open':
      if (now) close(now)
      now = await open(q.state && un64(q.state), q.options ?? {})
      return look()
    case 'apply':
      Y.applyUpdate(now.doc, un64(q.update), 'remote')
      return look()
    case 'edit':
      q.steps.forEach(run)
      return look()
    case 'position': {
      const pos = position(now, q.at)
      return { pos, before: pos === null ? '' : now.editor.state.doc.textBetween(0, pos, '\n', '\ufffc') }
    }
    case 'relative':
      return relative(now, behind(q.find))
  }
  throw new Error('unknown command')
}

const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity })
for await (const line of lines) {
  if (!line) continue
  let out
  try { out = await answer(JSON.parse(line)) } catch (e) { out = { error: String(e.stack ?? e) } }
  process.stdout.write(JSON.stringify(out) + '\n')
}
process.exit(0)

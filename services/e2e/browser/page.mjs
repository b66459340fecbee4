// The script of the page: a typical TipTap editor for a document shared through y-websocket.
import { Editor } from '@tiptap/core'
import Code from '@tiptap/extension-code'
import Collaboration from '@tiptap/extension-collaboration'
import CollaborationCaret from '@tiptap/extension-collaboration-caret'
import Highlight from '@tiptap/extension-highlight'
import Image from '@tiptap/extension-image'
import { TaskItem, TaskList } from '@tiptap/extension-list'
import Mention from '@tiptap/extension-mention'
import Subscript from '@tiptap/extension-subscript'
import Superscript from '@tiptap/extension-superscript'
import { TableKit } from '@tiptap/extension-table'
import StarterKit from '@tiptap/starter-kit'
import { WebsocketProvider } from 'y-websocket'
import * as Y from 'yjs'

// docs/editor.md.
const CombinedCode = Code.extend({ excludes: 'code' })
const LinkedImage = Image.extend({
  addAttributes () {
    return { ...this.parent?.(), href: { default: null, parseHTML: e => e.closest('a')?.getAttribute('href') ?? null } }
  },
  renderHTML ({ HTMLAttributes: { href, ...attributes } }) {
    return /^(https?:|mailto:)/i.test(href ?? '') ? ['a', { href, rel: 'noopener noreferrer nofollow' }, ['img', attributes]] : ['img', attributes]
  },
})

window.open_document = ({ url, document: name, params, user }) => {
  const doc = new Y.Doc()
  const provider = new WebsocketProvider(url, name, doc, { params, disableBc: true })
  const closed = []
  provider.on('connection-close', event => event && closed.push({ code: event.code, reason: event.reason }))
  // The updates that this page wrote. An editor that repairs others' changes writes updates without
  // typing.
  let wrote = 0
  doc.on('update', (_, origin) => { if (origin !== provider) wrote++ })
  const errors = []
  window.addEventListener('error', event => errors.push(String(event.message)))
  const editor = new Editor({
    element: document.querySelector('#editor'),
    extensions: [
      StarterKit.configure({ undoRedo: false, code: false }), CombinedCode, LinkedImage, Highlight, TaskList, TaskItem, Mention, Subscript, Superscript, TableKit,
      Collaboration.configure({ document: doc }),
      CollaborationCaret.configure({ provider, user }),
    ],
  })
  window.page = {
    synced: () => provider.synced,
    wrote: () => wrote,
    json: () => editor.getJSON(),
    text: () => editor.getText(), // without the names at the carets
    closed: () => closed,
    errors: () => errors,
    connect: on => (on ? provider.connect() : provider.disconnect()),
    // Places the caret after the first occurrence of a text. TipTap takes the focus with the next
    // frame; earlier keys would be lost.
    caret: async text => {
      let at = -1
      editor.state.doc.descendants((node, pos) => {
        const i = node.isText ? node.text.indexOf(text) : -1
        if (at < 0 && i >= 0) at = pos + i + text.length
      })
      if (at < 0) throw new Error(`the document does not have the text ${JSON.stringify(text)}`)
      editor.chain().focus().setTextSelection(at).run()
      while (!editor.view.hasFocus()) await new Promise(resolve => setTimeout(resolve, 10))
    },
    // The text before the caret, in its block.
    before: () => {
      const { $from } = editor.state.selection
      return $from.parent.textBetween(0, $from.parentOffset)
    },
// The names on the carets of others.
    carets: () => [...document.querySelectorAll('.collaboration-carets__label')].map(e => e.textContent),
    people: () => [...provider.awareness.getStates().values()].map(s => s.user?.name).filter(Boolean).sort(),
    update: () => btoa(String.fromCharCode(...Y.encodeStateAsUpdate(doc))),
    undo: () => editor.commands.undo(),
  }
}

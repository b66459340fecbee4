// TipTap 3 in Node: an editor on a shared document, in jsdom.
import { JSDOM } from 'jsdom'
import * as Y from 'yjs'

const dom = new JSDOM('<!doctype html><html><body></body></html>', { pretendToBeVisual: true })
for (const name of ['window', 'document', 'navigator', 'Node', 'Element', 'HTMLElement', 'Text', 'DocumentFragment', 'DOMParser',
  'XMLSerializer', 'MutationObserver', 'Event', 'KeyboardEvent', 'InputEvent', 'getSelection', 'getComputedStyle', 'innerWidth', 'innerHeight']) {
  Object.defineProperty(globalThis, name, { value: name === 'window' ? dom.window : dom.window[name], configurable: true, writable: true })
}
globalThis.requestAnimationFrame = f => setTimeout(f, 0)
globalThis.cancelAnimationFrame = clearTimeout
// jsdom has no layout.
dom.window.Range.prototype.getClientRects = () => []
dom.window.Range.prototype.getBoundingClientRect = () => ({ top: 0, bottom: 0, left: 0, right: 0, width: 0, height: 0 })
dom.window.document.elementFromPoint = () => null

const warn = console.warn
console.warn = (...args) => /TextSelection endpoint/.test(args[0]) || warn(...args)

// After the globals: these look for them while they load.
const { Editor, Mark, Node } = await import('@tiptap/core')
const { default: StarterKit } = await import('@tiptap/starter-kit')
const { default: Code } = await import('@tiptap/extension-code')
const { default: Collaboration } = await import('@tiptap/extension-collaboration')
const { default: Highlight } = await import('@tiptap/extension-highlight')
const { default: Image } = await import('@tiptap/extension-image')
const { default: Mention } = await import('@tiptap/extension-mention')
const { default: Subscript } = await import('@tiptap/extension-subscript')
const { default: Superscript } = await import('@tiptap/extension-superscript')
const { TableKit } = await import('@tiptap/extension-table')
const { TaskItem, TaskList } = await import('@tiptap/extension-list')
const { ySyncPluginKey, relativePositionToAbsolutePosition, absolutePositionToRelativePosition } = await import('@tiptap/y-tiptap')

// Comment may lie on one text several times.
const Comment = Mark.create({
  name: 'comment',
  excludes: '',
  addAttributes: () => ({ id: { default: null } }),
  parseHTML: () => [{ tag: 'span[data-comment]' }],
  renderHTML: ({ HTMLAttributes }) => ['span', HTMLAttributes, 0]
})

// Callout and Emoji are what an application of its own may have, one block, one in text.
const Callout = Node.create({
  name: 'callout',
  group: 'block',
  content: 'block+',
  addAttributes: () => ({ kind: { default: 'note' } }),
  parseHTML: () => [{ tag: 'aside' }],
  renderHTML: ({ HTMLAttributes }) => ['aside', HTMLAttributes, 0]
})
const Emoji = Node.create({
  name: 'emoji',
  group: 'inline',
  inline: true,
  atom: true,
  addAttributes: () => ({ name: { default: null } }),
  parseHTML: () => [{ tag: 'i[data-emoji]' }],
  renderHTML: ({ HTMLAttributes }) => ['i', HTMLAttributes]
})

// The two extensions of docs/editor.md: code may be bold or in a link, and an
// image may lead somewhere.
const CombinedCode = Code.extend({ excludes: 'code' })
const LinkedImage = Image.extend({
  addAttributes () {
    return { ...this.parent?.(), href: { default: null, parseHTML: e => e.closest('a')?.getAttribute('href') ?? null } }
  },
  renderHTML ({ HTMLAttributes: { href, ...attributes } }) {
    return /^(https?:|mailto:)/i.test(href ?? '') ? ['a', { href, rel: 'noopener noreferrer nofollow' }, ['img', attributes]] : ['img', attributes]
  }
})

function extensions (options) {
  const kit = { undoRedo: false, link: { autolink: options.autolink ?? true } }
  const list = [
    ...options.unextended ? [StarterKit.configure(kit), Image] : [
      StarterKit.configure({ ...kit, code: false }), CombinedCode, LinkedImage.configure({ inline: !!options.inlineImages })
    ],
    Highlight, Superscript, Subscript, TableKit, TaskList, Mention, TaskItem.configure({ nested: !!options.nestedTasks })
  ]
  return options.own ? [...list, Comment, Callout, Emoji] : list
}

// turns lets timers that are due run, and those that they start.
export async function turns () {
  for (let i = 0; i < 4; i++) await new Promise(resolve => setTimeout(resolve, 0))
}

// open returns an editor on a document in a state.
export async function open (state, options = {}) {
  const doc = new Y.Doc()
  if (options.client) doc.clientID = options.client
  if (state) Y.applyUpdate(doc, state, 'remote')
  const wrote = []
  doc.on('update', (update, origin) => { if (origin !== 'remote') wrote.push(update) })
  const problems = []
  const editor = new Editor({
    element: document.body.appendChild(document.createElement('div')),
    extensions: [...extensions(options), Collaboration.configure({ document: doc, field: options.field ?? 'default' })],
    enableContentCheck: true,
    onContentError: ({ error }) => problems.push(String(error))
  })
  await turns()
  return { editor, doc, wrote, problems }
}

export function close ({ editor, doc }) {
  editor.options.element.remove()
  editor.destroy()
  doc.destroy()
}

// position returns where a relative position is in the editor, null for nowhere.
export function position ({ editor, doc }, json) {
  const { type, binding } = ySyncPluginKey.getState(editor.state)
  return relativePositionToAbsolutePosition(doc, type, Y.createRelativePositionFromJSON(json), binding.mapping)
}

// relative returns a position of the editor as its cursor says it to others.
export function relative ({ editor }, pos) {
  const { type, binding } = ySyncPluginKey.getState(editor.state)
  return absolutePositionToRelativePosition(pos, type, binding.mapping)
}

// schema says what the editor's schema is.
export async function schema (options) {
  const e = await open(null, options)
  const { nodes, marks, topNodeType } = e.editor.schema
  const attrs = specs => Object.fromEntries(Object.entries(specs ?? {}).map(([name, a]) => [name, a.default ?? null]))
  const out = { top: topNodeType.name, nodes: {}, marks: [] }
  for (const n of Object.values(nodes)) {
    out.nodes[n.name] = {
      content: n.spec.content ?? '', group: n.spec.group ?? '', inline: n.isInline, leaf: n.isLeaf, code: !!n.spec.code,
      marks: Object.values(marks).filter(m => n.allowsMarkType(m)).map(m => m.name), attrs: attrs(n.spec.attrs)
    }
  }
  for (const m of Object.values(marks)) {
    out.marks.push({ name: m.name, excludes: Object.values(marks).filter(o => m.excludes(o)).map(o => o.name), attrs: attrs(m.spec.attrs) })
  }
  close(e)
  return out
}

// What a person would see of the page, and what they could do there. It runs in an isolated
// world of the page. References to elements stay valid until the page is left.
(name, args) => {
	const maxText = 1 << 20, maxNodes = 200000, maxTime = 4000
	const refs = globalThis.signalboxRefs ??= {byNumber: [], numbers: new WeakMap()}

	const ref = (el) => {
		let n = refs.numbers.get(el)
		if (n === undefined) {
			n = refs.byNumber.push(new WeakRef(el))
			refs.numbers.set(el, n)
		}
		return '@' + n
	}
	const squeeze = (s) => (s ?? '').replace(/\s+/g, ' ').trim()
	const short = (s, n) => (s.length > n ? s.slice(0, n) + '…' : s)
	const visible = (el) => !el.checkVisibility || el.checkVisibility({visibilityProperty: true})

	// The name by which a person would call a control.
	const nameOf = (el) => {
		const byId = (el.getAttribute('aria-labelledby') ?? '').split(/\s+/).map((id) => id && el.getRootNode().getElementById?.(id)?.textContent).join(' ')
		const label = el.labels?.[0]?.innerText
		const own = el.matches('input, select, textarea') ? '' : el.innerText
		const button = el.matches('input[type=submit], input[type=button], input[type=reset]') ? el.value : ''
		const found = [el.getAttribute('aria-label'), byId, label, button, own, el.getAttribute('placeholder'), el.title, el.querySelector?.('img')?.alt, el.name]
		return short(found.map(squeeze).find((s) => s !== '') ?? '', 100)
	}

	const kindOf = (el) => {
		const tag = el.localName, type = (el.getAttribute('type') ?? '').toLowerCase(), role = el.getAttribute('role') ?? ''
		if (tag === 'select') return 'list'
		if (tag === 'textarea' || el.isContentEditable && !el.parentElement?.isContentEditable) return 'text field'
		if (tag === 'input') {
			if (type === 'hidden') return ''
			if (['submit', 'button', 'reset', 'image'].includes(type)) return 'button'
			if (['checkbox', 'radio', 'file'].includes(type)) return type
			return type === 'password' ? 'password field' : 'text field'
		}
		if (tag === 'button' || tag === 'summary' || ['button', 'tab', 'menuitem', 'option', 'switch'].includes(role)) return 'button'
		if (['checkbox', 'radio'].includes(role)) return role
		if (tag === 'a' || role === 'link') return 'link'
		if (el.hasAttribute('onclick')) return 'button'
		return ''
	}

	// A control as Markdown; '' for other elements.
	const control = (el) => {
		const kind = kindOf(el)
		if (kind === '' || kind === 'link') return ''
		let state = ''
		if (kind === 'list') {
			const options = [...el.options].slice(0, 30).map((o) => short(squeeze(o.label), 60))
			state = ` = "${short(squeeze(el.selectedOptions[0]?.label), 60)}" of ${options.join(', ')}${el.options.length > 30 ? ', …' : ''}`
		} else if (kind === 'text field') {
			const value = short(squeeze(el.value ?? el.innerText), 200)
			state = value && ` = "${value}"`
		} else if (kind === 'checkbox' || kind === 'radio') {
			state = el.checked || el.getAttribute('aria-checked') === 'true' ? ' (on)' : ' (off)'
		}
		return `[${kind} "${nameOf(el)}"${state}${el.disabled ? ' (disabled)' : ''} ${ref(el)}]`
	}

	const skipped = new Set(['script', 'style', 'noscript', 'template', 'svg', 'canvas', 'object', 'embed', 'audio', 'video', 'head', 'title', 'option', 'datalist'])

	const markdown = () => {
		const until = Date.now() + maxTime
		let out = '', nodes = 0, gap = 0, prefix = '', lists = [], pre = false, truncated = false
		const full = () => truncated ||= out.length > maxText || nodes > maxNodes || nodes % 256 === 0 && Date.now() > until
		const block = (n) => { gap = Math.max(gap, n) }
		const write = (text) => {
			if (text === '') return
			if (gap > 0 && out !== '') {
				out = out.trimEnd() + ('\n' + prefix.trimEnd()).repeat(gap - 1) + '\n' + prefix
				text = pre ? text : text.trimStart()
			}
			if (text === '') return
			gap = 0
			out += /\s$/.test(out) && !pre ? text.trimStart() : text
		}
		const children = (el) => {
			for (const child of (el.shadowRoot ?? (el.localName === 'slot' && el.assignedNodes().length ? {childNodes: el.assignedNodes()} : el)).childNodes) {
				if (full()) return
				node(child)
			}
		}
		const around = (before, el, after) => {
			write(before)
			children(el)
			write(after)
		}
		const indented = (more, el) => {
			const old = prefix
			prefix += more
			children(el)
			prefix = old
		}
		const link = (el) => {
			const at = out.length
			const href = /^https?:/.test(el.href) ? short(el.href, 500) : ''
			write('[')
			const start = out.length
			children(el)
			let text = squeeze(out.slice(start))
			if (text === '') text = nameOf(el)
			if (text === '' && href === '') {
				out = out.slice(0, at)
				return
			}
			out = out.slice(0, start) + text + ']' + (href && `(${href})`) + ' ' + ref(el) + ' '
			gap = 0
		}
		const row = (el) => {
			block(1)
			write('| ')
			for (const cell of el.cells ?? []) {
				const start = out.length
				if (visible(cell)) children(cell)
				out = out.slice(0, start) + squeeze(out.slice(start)).replaceAll('|', '\\|') + ' | '
				gap = 0
			}
			block(1)
			if (el.rowIndex === 0) write('|' + ' --- |'.repeat(el.cells?.length ?? 0))
			block(1)
		}
		const node = (n) => {
			nodes++
			if (n.nodeType === Node.TEXT_NODE) {
				write(pre ? n.data.replaceAll('\n', '\n' + prefix) : n.data.replace(/\s+/g, ' '))
				return
			}
			if (n.nodeType !== Node.ELEMENT_NODE || skipped.has(n.localName) || !visible(n)) {
				if (n.nodeType === Node.ELEMENT_NODE && getComputedStyle(n).display === 'contents') children(n)
				return
			}
			element(n, n.localName)
		}
		const element = (n, tag) => {
			const c = control(n)
			if (c !== '') {
				write(' ' + c + ' ')
				return
			}
			switch (tag) {
			case 'h1': case 'h2': case 'h3': case 'h4': case 'h5': case 'h6':
				block(2)
				around('#'.repeat(Number(tag[1])) + ' ', n, '')
				block(2)
				return
			case 'br':
				block(1)
				return
			case 'hr':
				block(2)
				write('---')
				block(2)
				return
			case 'a':
				link(n)
				return
			case 'img':
				if (squeeze(n.alt) !== '') write(`![${short(squeeze(n.alt), 200)}]`)
				return
			case 'b': case 'strong':
				if (squeeze(n.textContent) !== '') around('**', n, '**')
				return
			case 'code':
				if (pre) children(n); else around('`', n, '`')
				return
			case 'pre':
				block(2)
				write('```')
				block(1)
				pre = true
				children(n)
				pre = false
				block(1)
				write('```')
				block(2)
				return
			case 'ul': case 'ol':
				block(lists.length > 0 ? 1 : 2)
				lists.push(tag === 'ol' ? (n.start || 1) : 0)
				children(n)
				lists.pop()
				block(lists.length > 0 ? 1 : 2)
				return
			case 'li': {
				block(1)
				const i = lists.length - 1
				write(i >= 0 && lists[i] > 0 ? `${lists[i]++}. ` : '- ')
				indented('  ', n)
				block(1)
				return
			}
			case 'blockquote': {
				block(2)
				const old = prefix
				if (out !== '') out = out.trimEnd() + '\n' + prefix.trimEnd() + '\n'
				prefix += '> '
				out += prefix
				gap = 0
				children(n)
				prefix = old
				block(2)
				return
			}
			case 'tr':
				row(n)
				return
			case 'iframe': case 'frame': {
				block(2)
				const inner = n.contentDocument?.body // only of the same origin
				if (inner) children(inner); else if (/^https?:/.test(n.src)) write(`[frame ${short(n.src, 500)}]`)
				block(2)
				return
			}
			}
			const display = getComputedStyle(n).display
			const apart = !display.startsWith('inline') && display !== 'contents'
			const gapOf = tag === 'p' || tag === 'table' || tag === 'section' || tag === 'article' ? 2 : 1
			if (apart) block(gapOf)
			children(n)
			if (apart) block(gapOf)
		}
		const root = document.body ?? document.documentElement
		if (root) children(root)
		if (out.length > maxText) out = out.slice(0, maxText)
		return {markdown: out.replace(/[ \t]+$/gm, '').trim().toWellFormed(), truncated}
	}

	const find = ({selector, origin}) => {
		if (location.origin !== origin) return {elsewhere: location.origin}
		const number = /^\s*\[?@(\d+)\]?\s*$/.exec(selector)
		if (number) {
			const el = refs.byNumber[number[1] - 1]?.deref()
			if (!el?.isConnected) return {problem: `there is no element ${selector} on this page any more: read the page again for what is there`}
			return {el}
		}
		let all
		try {
			all = document.querySelectorAll(selector)
		} catch {
			return {problem: `${short(selector, 100)} is neither a reference like @12 nor a CSS selector`}
		}
		const el = [...all].find(visible) ?? all[0]
		return el ? {el} : {problem: `no element matches ${short(selector, 100)}: browser_read shows what is there, with references`}
	}

	const typed = (el) => el.matches('textarea') || el.matches('input') && kindOf(el).endsWith('field')
	const optionOf = (list, text) => [...list.options].find((o) => squeeze(o.label) === squeeze(text) || o.value === text)
	const labelOf = (el) => squeeze(`${kindOf(el) || el.localName} "${nameOf(el)}"`).toWellFormed()

	const functions = {
		info: () => {
			const entry = performance.getEntriesByType('navigation')[0]
			return {title: short(squeeze(document.title), 300).toWellFormed(), status: entry?.responseStatus ?? 0}
		},
		markdown,
		// Says whether the page still has the origin.
		here: ({origin}) => location.origin === origin ? {} : {elsewhere: location.origin},
		// Finds what is to be clicked, and where if the mouse can reach it.
		target: (args) => {
			const {el, problem, elsewhere} = find(args)
			if (!el) return {problem, elsewhere}
			if (el.disabled) return {problem: `${labelOf(el)} is disabled`}
			if (el.matches('input[type=file]')) return {problem: 'files cannot be uploaded'}
			el.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'})
			const box = [...el.getClientRects()].find((r) => r.width > 0 && r.height > 0)
			const found = {element: labelOf(el), ref: ref(el)}
			if (!box || el.ownerDocument !== document) return found
			const x = box.x + box.width / 2, y = box.y + box.height / 2
			let hit = document.elementFromPoint(x, y)
			while (hit?.shadowRoot?.elementFromPoint(x, y) && hit.shadowRoot.elementFromPoint(x, y) !== hit) hit = hit.shadowRoot.elementFromPoint(x, y)
			if (!hit) return found
			if (el.contains(hit) && hit.matches('iframe, frame, object, embed') && !hit.contentDocument) {
				return {problem: `${found.element} has a page of another site at its centre: open that by its own address`}
			}
			const mouse = el.contains(hit) || hit.contains(el) && hit.matches('a, button, label')
			return mouse ? {...found, mouse, x, y} : found
		},
		// Clicks what the mouse cannot reach.
		click: (args) => {
			const {el, problem, elsewhere} = find(args)
			el?.click()
			return {problem, elsewhere}
		},
		// Finds a field that takes the text.
		field: (args) => {
			const {el, problem, elsewhere} = find(args)
			if (!el) return {problem, elsewhere}
			const element = labelOf(el)
			if (el.disabled || el.readOnly) return {problem: `${element} cannot be changed`}
			if (el.localName === 'select') {
				if (!optionOf(el, args.text)) return {problem: `${element} has no option ${short(args.text, 100)}`}
			} else if (!typed(el) && !el.isContentEditable) {
				return {problem: `${element} takes no text`}
			}
			return {element, ref: ref(el)}
		},
		// Selects what is in a field, for the text to replace it; or chooses an option or sets a value, and is done.
		fill: (args) => {
			const {el, problem, elsewhere} = find(args)
			if (!el) return {problem, elsewhere}
			const changed = () => {
				el.dispatchEvent(new Event('input', {bubbles: true}))
				el.dispatchEvent(new Event('change', {bubbles: true}))
				return {done: true}
			}
			if (el.localName === 'select') {
				const option = optionOf(el, args.text)
				if (!option) return {problem: 'the option is gone'}
				option.selected = true
				return changed()
			}
			el.scrollIntoView({block: 'center', behavior: 'instant'})
			el.focus()
			if (['date', 'time', 'datetime-local', 'month', 'week', 'color', 'range'].includes(el.type) || typed(el) && args.text === '') {
				Object.getOwnPropertyDescriptor(Object.getPrototypeOf(el), 'value').set.call(el, args.text)
				return changed()
			}
			if (typed(el)) el.select(); else getSelection().selectAllChildren(el)
			return {}
		},
	}
	return functions[name](args)
}

// Package yjs is a replica of Yjs documents: shared text, maps, arrays and XML that
// several people and programs edit at once, offline too, and that end up the same for
// everybody who has seen the same updates, in whatever order. It reads and writes what
// npm yjs 13.6 does, in both encodings and to the byte, and needs no JavaScript.
//
//	d := yjs.New(yjs.Options{})
//	stop := d.OnUpdate(func(u *yjs.Update) { send(u.V1()) })
//	defer stop()
//	d.Transact("me", func(*yjs.Txn) { d.Text("title").Insert(0, "Hello") })
//	err := d.ApplyUpdate(received, "them")
//
// # The model
//
// Everything that was ever inserted is an item, named by the client that made it and
// that client's clock, which counts units: one for each UTF-16 unit of text, for each
// value, for each shared type. An item remembers between which two units it was put
// (its origin and right origin), and that places it among items that others put there
// at the same time (YATA). Deleting marks an item; its content then goes away but its
// place stays. An update is a set of items and a set of deleted ranges; both can be
// applied twice or late. A state vector has each client's next clock, and so says what a
// replica lacks. An item that refers to what has not arrived waits, encoded, and is part
// of the states that the document encodes.
//
// A shared type (Text, Map, Array, XMLFragment ...) is a list of items and a set of
// named lists, of which the last item is the value. Root types have names; others are
// the content of an item. Types made by NewText, NewMap and so on keep their edits until
// they are inserted, once; until then they read as empty. A type that was deleted takes no more edits: they return
// [ErrDetached], or do nothing.
//
// # Ownership
//
// A Doc is not safe for concurrent use, reading included (reading moves search markers):
// one goroutine owns it, and observers run on that goroutine. An observer may edit; its
// edits are transactions of their own, committed after the one it looks at. Byte slices
// that go in are copied, those that come out belong to the caller. The functions that
// work on updates alone (MergeUpdates, DiffUpdate ...) keep no state.
//
// # What holds at all times
//
//   - The items of a client are in the order of its clock, without gaps or overlaps.
//   - No replica changes a document because it applied an update. Yjs cleans up formats
//     behind remote edits, and its replicas differ until they have all met again; this
//     package leaves what it was sent alone. It cleans up only behind its own deletions.
//   - Structs are collected and joined at commit in the order that Yjs has: first
//     deleted content, then the neighbours of deleted ranges, of new and of split items,
//     each from the right to the left. Joined otherwise, states would mean the same and
//     have other bytes.
//   - Edits of ours do not tear characters apart: indexes in a Text are moved to borders
//     of graphemes (surrogate pairs, accents, joined emoji, flags, Hangul; not CR LF). A
//     remote edit that tears a pair leaves two U+FFFD, as in Yjs.
//   - Attributes that are objects are compared by content. Yjs compares some of them by
//     identity and so keeps a few formats more; everything else that a local edit
//     writes is what npm yjs would write.
//   - What waits goes in as soon as it can. Yjs remembers only some of what structs
//     wait for, and with updates out of order now and then waits for ever.
//   - Hostile input costs no more than [Limits] say. See [Doc.ApplyUpdate] for the state
//     of the document after an error.
//   - Clocks have 32 bits, client ids the 53 that JavaScript can read; npm yjs makes ids of
//     32, counts clocks up to 2^53 and reads what goes beyond here. What does is
//     [ErrMalformed], wherever it stands.
//
// # What a well-formed struct is
//
// Editors write structs of a certain shape, and only for that shape does integration make
// the same list in whatever order they come. An update may hold others. They are neither
// trusted nor refused: each is taken as a struct of that shape, by the following rules,
// and is written so from then on. None of them asks for the order in which structs came,
// for the borders of items, or for what has been collected since, so that all replicas of
// this package agree, and a document agrees with what is made of its state. Npm yjs reads
// what they write, and says the same of it.
//
//   - Ids. An id names one unit for ever: what came first stays, so that replicas differ
//     which heard of two structs with one id in another order. Of a struct whose first
//     units are known only the rest is new. It continues them: the last one is its origin.
//   - Parents. With an origin, a struct is in the type and under the key of that; else in
//     those of its right origin; only with neither does it name a parent and a key itself.
//     Where what would tell has been collected, or the parent is no type, the struct is a
//     GC. In a deleted type it is deleted.
//   - Origins. Any unit can be one. A list is therefore always the tree of its origins,
//     parents before children, and places differ only among children of one unit.
//   - Right origins. The editor had nothing between the two. So the right origin is a child
//     of the origin, and ends the search for a place, or it is not behind the origin in the
//     tree, and serves as a name when two structs contend for a place. It is left out when
//     it is in another list (or collected), when it is behind the origin but no child, and
//     when it is one of the client's own units that lead up to the origin in a row.
//   - Keys. A key has one value: of several in one struct all but the last are deleted.
//   - What is not there. A struct waits for all units that it names, and for the one in
//     front of it; a deletion waits for what it deletes. GC and Skip may be anywhere.
//   - Our own id. When somebody names clocks of ours that we have not used, we take
//     another id.
//
// Npm yjs does the same with structs of the shape. Of others it makes what depends on the
// order, and its state is at times read as something else, or it fails when it collects.
// The tests TestForged and TestForgedUndo write both kinds.
//
// # How it lies in memory
//
// Items are 56 bytes without pointers, in slabs of 64, named by 32-bit references;
// those that are joined away are used again. Texts lie in one byte arena in UTF-8, an
// item has offset and length there and a flag that says that bytes are units. Values,
// which have pointers, are in a table beside the items. Each client has a list of its
// items' references, searched by halving with the last hit as a first guess. Appending
// to the item that a client wrote last, which is what typing is, grows it in place. A
// transaction keeps plain lists, and sorts what it deleted at commit. Up to 80 search
// markers for each text and array remember where recently edited indexes are. A stamp
// for each item serves as the set of those that integration has passed.
//
// # Sources
//
// The algorithm is that of "Near Real-Time Peer-to-Peer Shared Editing on Extensible
// Data Types" (Nicolaescu, Jahns, Derntl, Klamma, GROUP 2016) as npm yjs 13.6 has it; the
// formats are those of yjs and lib0, which have no specification but their source. What
// is the same and what is not was found out by comparing: see conformance_test.go.
package yjs

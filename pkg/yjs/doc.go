// Package yjs implements Yjs documents: shared text, maps, arrays and XML that several
// people and programs edit at once, also offline. Replicas that have seen the same updates
// are equal, whatever the order. The formats are those of npm yjs 13.6, in both encodings
// and to the byte.
//
//	d := yjs.New(yjs.Options{})
//	stop := d.OnUpdate(func(u *yjs.Update) { send(u.V1()) })
//	defer stop()
//	d.Transact("me", func(*yjs.Txn) { d.Text("title").Insert(0, "Hello") })
//	err := d.ApplyUpdate(received, "them")
//
// # Model
//
// All inserted content is items. An item is identified by its client and that client's
// clock, which counts units: UTF-16 units of text, values and shared types. Its origin and
// right origin are the units between which it was inserted; they order concurrent
// insertions (YATA). Deletion marks an item, and garbage collection drops its content but
// not its place. An update is a set of structs (items, or the ranges GC and Skip) and a
// delete set, and may be applied late and repeatedly. A state vector holds each client's
// next clock. A struct whose dependencies are missing is pending: it stays encoded and is
// part of the encoded state. A shared type is a list of items and a map of named lists, of
// which the last item is the value. Types made by NewText, NewMap and so on keep their edits
// until they are inserted, and read as empty until then.
//
// A Doc belongs to one goroutine, reads included, and observers run on it. Edits of an
// observer form transactions of their own, committed after the observed one. Input bytes are
// copied, output bytes belong to the caller. Limits bound the cost of hostile input.
//
// # Invariants and differences from npm yjs
//
//   - The structs of a client are sorted by clock, without gaps or overlaps.
//   - Applying an update writes nothing else. Yjs cleans up formats after remote edits,
//     which makes replicas diverge; this package cleans up after local deletions only.
//   - Commit collects deleted content, then merges structs in deleted ranges, new structs
//     and split structs, each from right to left: this order determines the encoded bytes.
//   - Local edits do not split graphemes. A remote edit that splits a surrogate pair leaves
//     two U+FFFD, as in Yjs.
//   - Formats are compared by content; Yjs compares some objects by identity.
//   - Pending structs are integrated as soon as possible; Yjs sometimes misses the moment.
//   - Clocks have 32 bits and client ids 53. Anything larger is [ErrMalformed].
//
// # Malformed structs
//
// An update may contain structs that no editor writes, for which YATA does not converge.
// They are normalized by rules that do not depend on the order of arrival, on item
// boundaries or on garbage collection:
//
//   - The first struct with an id wins. A struct whose first units are known is reduced to
//     the rest, with the last known unit as its origin.
//   - The origin determines the parent and key, else the right origin does, else the struct
//     itself. A struct without a valid parent becomes GC; one in a deleted type is deleted.
//   - A right origin is ignored if it is in another list, collected, after the origin
//     without being its child, or one of the client's own units that lead to the origin.
//   - A key has one value: all but the last value of a struct are deleted.
//   - If an update uses our own unused clocks, the document takes a new client id.
//
// # Memory
//
// Items are 56 bytes without pointers, in chunks of 64 with 32-bit references. Text is UTF-8
// in one byte arena; values with pointers are in a separate table. Appending to a client's
// last item grows it in place. Up to 80 search markers per sequence cache positions.
//
// The algorithm is YATA (Nicolaescu, Jahns, Derntl, Klamma, GROUP 2016) as implemented by
// npm yjs. The formats are specified by the source of yjs and lib0 only.
package yjs

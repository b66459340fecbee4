package execute

// Waiting returns how many calls wait for a slot.
func (e *Executor) Waiting() int { return e.slots.Waiting() }

// Package tideway moves bytes between processes: a process registers memory or
// files as named buffers of its segment, any other process reads and writes
// them by name, in batches, over the fastest transport that joins the two.
//
// Open starts an Engine. Alloc and Register make local buffers, OpenSegment
// finds what a peer offers. Do moves and waits; Submit returns a Batch to wait
// on, cancel or range over. Completed means applied: a write is complete when
// the bytes are visible at the target, a read when every byte is in the local
// range.
//
// A Wait's context ends the wait, a request's Deadline ends the transfer,
// Cancel withdraws it. Local memory is the caller's again when the transfer has
// ended, not before, and always then. Every error is an *Error, or wraps one,
// that says what, where, why and what to do.
package tideway

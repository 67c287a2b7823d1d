package tideway

import "github.com/tideway-io/tideway/errs"

// Error says what failed, where, why and what to do. Use errors.As to get at
// it and errors.Is with the sentinels to decide; its Reason is finer, one of the
// codes of package errs (errs.Restarted, errs.Revoked, errs.OutOfRange, ...).
type Error = errs.Error

// The kinds of failure. Each Error matches exactly one of them, or
// context.Canceled or context.DeadlineExceeded.
var (
	ErrClosed      = errs.ErrClosed      // the engine, buffer or batch is closed; also net.ErrClosed
	ErrInvalid     = errs.ErrInvalid     // the call is wrong and will be wrong again
	ErrNotFound    = errs.ErrNotFound    // no such segment or buffer; also fs.ErrNotExist
	ErrUnsupported = errs.ErrUnsupported // nothing here can do it
	ErrOverloaded  = errs.ErrOverloaded  // nothing was taken; try again later
	ErrBusy        = errs.ErrBusy        // in use by transfers
	ErrUnreachable = errs.ErrUnreachable // the peer refused, died or went silent
	ErrStale       = errs.ErrStale       // the peer restarted or closed the buffer; refresh the segment
	ErrDenied      = errs.ErrDenied      // the buffer's access does not allow it
	ErrChecksum    = errs.ErrChecksum    // corruption that retries did not cure
	ErrPortInUse   = errs.ErrPortInUse   // the listen address is taken
	ErrInternal    = errs.ErrInternal    // a broken invariant; the engine is poisoned
)

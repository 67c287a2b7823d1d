package sys

import "errors"

var (
	// ErrAgain says that a socket has no room now.
	ErrAgain = errors.New("not now")
	// ErrLong says that a message was longer than the room for it.
	ErrLong = errors.New("message too long")
)

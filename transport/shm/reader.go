package shm

import (
	"errors"
	"syscall"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
)

var errGone = errors.New("the process is another one, or has closed the transport")

// reader reads pieces out of another process and makes sure that it was that
// process and no later one of the same number.
type reader struct {
	ranges sys.Ranges
	pieces [][]byte
	nonce  [lifeSize]byte
}

func (r *reader) reset() {
	r.ranges.Reset()
	clear(r.pieces)
	r.pieces = r.pieces[:0]
}

// add appends a piece: the bytes at address from of the other process, to go to
// to, which is not empty.
func (r *reader) add(to []byte, from uint64) {
	r.pieces = append(r.pieces, to)
	r.ranges.Add(to, from)
}

// run reads the pieces in order. whole of them, counted from the first, were
// read to the end out of the process that life shows; err says why not all.
// Of the others any part may have been written. The pieces are gone then.
//
// The proof is read by the same call, behind the pieces: so when it is right,
// the process was there while they were read.
func (r *reader) run(pid int, life *proof) (whole int, err error) {
	defer r.reset()
	total := 0
	for _, p := range r.pieces {
		total += len(p)
	}
	r.ranges.Add(r.nonce[:], life.addr)
	clear(r.nonce[:])
	n, err := r.ranges.Read(pid)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EPERM) {
		return 0, err
	}
	if n < total+lifeSize && !alive(pid, life) || n == total+lifeSize && r.nonce != life.nonce {
		return 0, errGone
	}
	for n = min(n, total); whole < len(r.pieces) && n >= len(r.pieces[whole]); whole++ {
		n -= len(r.pieces[whole])
		raceWrote(r.pieces[whole])
	}
	if whole < len(r.pieces) && err == nil {
		err = syscall.EFAULT
	}
	return whole, err
}

// alive reports whether the process shows life.
func alive(pid int, life *proof) bool {
	nonce, err := readProof(pid, life.addr)
	return err == nil && nonce == life.nonce
}

func readProof(pid int, addr uint64) (nonce [lifeSize]byte, err error) {
	b := make([]byte, lifeSize)
	var r sys.Ranges
	r.Add(b, addr)
	_, err = r.Read(pid)
	copy(nonce[:], b)
	return nonce, err
}

// attachable says why process pid, which shows life, cannot be read; nil: it can.
func attachable(pid int, life *proof) error {
	if pid == 0 {
		return errors.New("it is in a process namespace that cannot be seen from here")
	}
	nonce, err := readProof(pid, life.addr)
	if err != nil {
		return err
	}
	if nonce != life.nonce {
		return errGone
	}
	return nil
}

// unread gives the reason why a piece was not read a code.
func unread(err error) errs.Code {
	switch {
	case err == errGone, errors.Is(err, syscall.ESRCH):
		return errs.LaneLost
	case err == nil:
		return errs.OK
	}
	// Not allowed (any more), or memory that the kernel does not read for others,
	// such as a device's: another transport may do it.
	return errs.Unsupported
}

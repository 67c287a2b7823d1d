package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/tideway-io/tideway/errs"
)

// nothing is the journal of a server that keeps its values in memory only.
type nothing struct{}

func (nothing) load(func(string, *entry)) error { return nil }
func (nothing) write([]*change) error           { return nil }
func (nothing) close() error                    { return nil }

// database is the journal of a server that outlives its process: one file, in
// which each write is one transaction, flushed before it returns.
type database struct{ db *bbolt.DB }

const bucket = "values"

// openDatabase opens or makes the file. A process has it alone.
func openDatabase(path string) (*database, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, cannotOpen(path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists([]byte(bucket))
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), db.Close())
	}
	return &database{db}, nil
}

func cannotOpen(path string, err error) error {
	e := &errs.Error{Op: "open database", Detail: path + ": no database of this server; choose another file", Reason: errs.Invalid, Err: err}
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		e.Reason, e.Detail = errs.Busy, path+": another process has it open; stop that one, or choose another file"
	case errors.Is(err, fs.ErrNotExist):
		e.Reason, e.Detail = errs.NotFound, path+": its directory has to be there"
	case errors.Is(err, fs.ErrPermission):
		e.Reason, e.Detail = errs.Denied, path+" cannot be read and written"
	}
	return e
}

func (d *database) load(each func(key string, e *entry)) error {
	return d.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bucket)).ForEach(func(key, record []byte) error {
			e, err := decodeEntry(record)
			if err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
			each(string(key), e)
			return nil
		})
	})
}

func (d *database) write(changes []*change) error {
	return d.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		for _, c := range changes {
			var err error
			if c.entry == nil {
				err = b.Delete([]byte(c.key))
			} else {
				err = b.Put([]byte(c.key), encodeEntry(c.entry))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *database) close() error { return d.db.Close() }

// recordVersion is the first byte of a record: then come the milliseconds that
// the value lasts, the length of its lease's name and that name, and the value.
const recordVersion = 1

func encodeEntry(e *entry) []byte {
	p := make([]byte, 0, 32+len(e.value))
	p = binary.AppendUvarint(append(p, recordVersion), uint64(e.ttl.Milliseconds()))
	p = append(binary.AppendUvarint(p, uint64(len(e.lease))), e.lease...)
	return append(p, e.value...)
}

func decodeEntry(p []byte) (*entry, error) {
	if len(p) == 0 || p[0] != recordVersion {
		return nil, errs.New(errs.Unsupported, "read record", "not a record of version %d: written by another version of this server", recordVersion)
	}
	ms, n := binary.Uvarint(p[1:])
	if n <= 0 || ms > uint64(MaxTTL/time.Millisecond) {
		return nil, errs.New(errs.Invalid, "read record", "the time to live is wrong")
	}
	p = p[1+n:]
	length, n := binary.Uvarint(p)
	if n <= 0 || length > uint64(len(p)-n) {
		return nil, errs.New(errs.Invalid, "read record", "the lease's name is cut off")
	}
	p = p[n:]
	return &entry{lease: string(p[:length]), value: append([]byte{}, p[length:]...), ttl: time.Duration(ms) * time.Millisecond}, nil
}

//go:build linux && cgo

package main

// #include <stdint.h>
// #include <unistd.h>
// #include "table.h"
import "C"

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

//export twGraceful
func twGraceful(handle C.uintptr_t) {
	_ = with(handle, func(*engine) error {
		lib.graceful.Do(func() {
			C.tw_at_exit()
			ends := make(chan os.Signal, 1)
			signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
			go func() {
				s := (<-ends).(syscall.Signal)
				lib.shutdown()
				C._exit(C.int(128 + int(s)))
			}()
		})
		return nil
	})
}

//export twAtExit
func twAtExit() { lib.shutdown() }

// shutdown ends every engine of the process, side by side.
func (l *library) shutdown() {
	var all sync.WaitGroup
	l.engines.Range(func(handle, _ any) bool {
		if e, ok := l.remove(handle.(uint64)); ok {
			all.Go(e.destroy)
		}
		return true
	})
	all.Wait()
}

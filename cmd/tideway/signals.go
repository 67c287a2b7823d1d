package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string {
	if e.sig == syscall.SIGTERM {
		return "terminated by SIGTERM"
	}
	return "interrupted by SIGINT"
}

// withSignals returns a context that the first SIGINT or SIGTERM cancels; the
// second one ends the process at once. stop gives the signals back.
func withSignals(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	got := make(chan os.Signal, 2)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for n := 0; ; n++ {
			select {
			case s := <-got:
				sig, _ := s.(syscall.Signal)
				if n > 0 {
					os.Exit(128 + int(sig))
				}
				cancel(&signalError{sig})
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		close(quit)
		<-gone
		cancel(nil)
	}
}

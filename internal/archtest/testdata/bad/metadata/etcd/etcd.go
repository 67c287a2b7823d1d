// Package etcd is a store.
package etcd

// Get gets.
func Get() {}

// Package util says nothing.
package util

// Package main should be called a command.
package main

import "github.com/tideway-io/tideway"

func main() { tideway.Plugin{}.StartJobs() }

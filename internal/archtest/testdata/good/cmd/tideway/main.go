// Command tideway is the command.
package main

import "github.com/tideway-io/tideway"

func main() { tideway.Drivers() }

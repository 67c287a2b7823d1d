// Package tideway has a second comment.
package tideway

package mooncake

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tideway-io/tideway/errs"
)

// maxDepth bounds nested values, and with them the stack.
const maxDepth = 64

// cursor reads JSON text from front to back. It is as lenient as the readers
// that Mooncake peers use: comments, trailing commas and text after the first
// value are let through. The first error sticks, so that callers check once, at
// the end; every read after it returns a zero value.
type cursor struct {
	p     []byte
	i     int
	depth int
	key   string // the member being read, for errors
	err   error
}

func (c *cursor) fail(want string) {
	if c.err != nil {
		return
	}
	found := "the end"
	if c.i < len(c.p) {
		found = strconv.QuoteRune(rune(c.p[c.i]))
	}
	member := ""
	if c.key != "" {
		member = "member " + strconv.Quote(c.key[:min(len(c.key), 64)]) + ", "
	}
	c.err = errs.New(errs.Invalid, "parse json", "%sbyte %d: want %s, found %s", member, c.i, want, found)
}

// peek skips white space and comments and returns the next byte, 0 at the end
// and after an error.
func (c *cursor) peek() byte {
	for c.err == nil && c.i < len(c.p) {
		switch c.p[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		case '/':
			c.comment()
		default:
			return c.p[c.i]
		}
	}
	return 0
}

func (c *cursor) comment() {
	rest := c.p[c.i:]
	end, skip := "", 0
	switch {
	case len(rest) > 1 && rest[1] == '/':
		end, skip = "\n", 0
	case len(rest) > 1 && rest[1] == '*':
		end, skip = "*/", 2
	default:
		c.fail("a value")
		return
	}
	for j := 2; j+len(end) <= len(rest); j++ {
		if string(rest[j:j+len(end)]) == end {
			c.i += j + skip
			return
		}
	}
	c.i = len(c.p)
	if skip > 0 {
		c.fail("the end of a comment")
	}
}

func (c *cursor) enter() bool {
	c.depth++
	if c.depth > maxDepth {
		c.fail("at most " + strconv.Itoa(maxDepth) + " nested values")
	}
	c.i++
	return c.err == nil
}

// object calls member with each key of an object; member must read the value.
// null is an object without members.
func (c *cursor) object(member func(key string)) {
	if c.null() {
		return
	}
	if c.peek() != '{' {
		c.fail("an object")
		return
	}
	outer := c.key
	for ok := c.enter(); ok && c.peek() != '}'; ok = c.next('}') {
		if c.peek() != '"' {
			c.fail("a member's name")
			return
		}
		key := c.str()
		if c.peek() != ':' {
			c.fail("a colon")
			return
		}
		c.i++
		c.key = key
		member(key)
	}
	c.key = outer
	c.leave()
}

// array calls elem for each element of an array; elem must read it. null is an
// empty array.
func (c *cursor) array(elem func()) {
	if c.null() {
		return
	}
	if c.peek() != '[' {
		c.fail("an array")
		return
	}
	for ok := c.enter(); ok && c.peek() != ']'; ok = c.next(']') {
		elem()
	}
	c.leave()
}

// next steps over a comma and reports whether the value may go on.
func (c *cursor) next(end byte) bool {
	switch c.peek() {
	case ',':
		c.i++
		return true
	case end:
		return true
	}
	c.fail("a comma or " + strconv.QuoteRune(rune(end)))
	return false
}

func (c *cursor) leave() {
	c.depth--
	if c.err == nil {
		c.i++
	}
}

func (c *cursor) word(w string) bool {
	if c.peek() != w[0] || len(c.p)-c.i < len(w) || string(c.p[c.i:c.i+len(w)]) != w {
		return false
	}
	c.i += len(w)
	return true
}

func (c *cursor) null() bool { return c.word("null") }

// str reads a string; null is the empty one.
func (c *cursor) str() string {
	if c.null() {
		return ""
	}
	if c.peek() != '"' {
		c.fail("a string")
		return ""
	}
	start := c.i + 1
	for j := start; j < len(c.p); j++ {
		switch c.p[j] {
		case '"':
			c.i = j + 1
			return string(c.p[start:j])
		case '\\':
			return c.escaped(start, j)
		}
	}
	c.i = len(c.p)
	c.fail("the end of a string")
	return ""
}

// escaped is the rest of str from the first backslash, at j.
func (c *cursor) escaped(start, j int) string {
	out := append([]byte(nil), c.p[start:j]...)
	for j < len(c.p) {
		b := c.p[j]
		j++
		if b == '"' {
			c.i = j
			return string(out)
		}
		if b != '\\' {
			out = append(out, b)
			continue
		}
		c.i = j
		if j == len(c.p) {
			break
		}
		if c.p[j] != 'u' {
			plain := unescape(c.p[j])
			if plain == 0 {
				break
			}
			out, j = append(out, plain), j+1
			continue
		}
		r, n := c.unicode(j)
		if n == 0 {
			break
		}
		out, j = utf8.AppendRune(out, r), j+n
	}
	c.fail("a string with known escapes and an end")
	return ""
}

func unescape(b byte) byte {
	switch b {
	case '"', '\\', '/':
		return b
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return 0
}

// unicode reads "uXXXX" at j, or two of them that make one rune, and returns
// how many bytes that took: 0 if it is not well formed.
func (c *cursor) unicode(j int) (rune, int) {
	unit := func(at int) (rune, bool) {
		if len(c.p)-at < 5 || c.p[at] != 'u' {
			return 0, false
		}
		var b [2]byte
		_, err := hex.Decode(b[:], c.p[at+1:at+5])
		return rune(binary.BigEndian.Uint16(b[:])), err == nil
	}
	r, ok := unit(j)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 5
	}
	if j+5 < len(c.p) && c.p[j+5] == '\\' {
		if low, ok := unit(j + 6); ok {
			if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
				return both, 11
			}
		}
	}
	return utf8.RuneError, 5
}

// number returns the text of a number.
func (c *cursor) number() []byte {
	c.peek()
	start := c.i
	for c.i < len(c.p) {
		switch b := c.p[c.i]; {
		case b >= '0' && b <= '9', b == '-', b == '+', b == '.', b == 'e', b == 'E':
			c.i++
			continue
		}
		break
	}
	return c.p[start:c.i]
}

// uint reads an integer from 0 to limit; null is 0.
func (c *cursor) uint(limit uint64) uint64 {
	if c.null() || c.err != nil {
		return 0
	}
	start := c.i
	n, err := strconv.ParseUint(string(c.number()), 10, 64)
	if err != nil || n > limit {
		c.i = start
		c.fail("an integer from 0 to " + strconv.FormatUint(limit, 10))
		return 0
	}
	return n
}

// int reads a signed integer; null is 0.
func (c *cursor) int() int64 {
	if c.null() || c.err != nil {
		return 0
	}
	start := c.i
	n, err := strconv.ParseInt(string(c.number()), 10, 64)
	if err != nil {
		c.i = start
		c.fail("an integer from " + strconv.FormatInt(math.MinInt64, 10) + " to " + strconv.FormatInt(math.MaxInt64, 10))
	}
	return n
}

// bool reads true or false; null is false.
func (c *cursor) bool() bool {
	if c.word("true") {
		return true
	}
	if !c.word("false") && !c.null() {
		c.fail("true or false")
	}
	return false
}

// bytes reads a base64 string.
func (c *cursor) bytes() []byte {
	s := c.str()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		c.fail("base64 text")
		return nil
	}
	return b
}

// raw reads any value and returns its text.
func (c *cursor) raw() []byte {
	c.peek()
	start := c.i
	c.skip()
	if c.err != nil {
		return nil
	}
	return c.p[start:c.i]
}

func (c *cursor) skip() {
	switch b := c.peek(); {
	case b == '{':
		c.object(func(string) { c.skip() })
	case b == '[':
		c.array(c.skip)
	case b == '"':
		c.skipString()
	case b == '-' || b >= '0' && b <= '9':
		c.number()
	case c.word("true") || c.word("false") || c.null():
	default:
		c.fail("a value")
	}
}

// skipString is str without the copy.
func (c *cursor) skipString() {
	for j := c.i + 1; j < len(c.p); j++ {
		switch c.p[j] {
		case '"':
			c.i = j + 1
			return
		case '\\':
			j++
		}
	}
	c.fail("the end of a string")
}

const hexDigits = "0123456789abcdef"

// appendString appends s as real peers write it: everything that is not ASCII
// as \u with lower-case digits, slashes bare, bytes that are not UTF-8 as U+FFFD.
func appendString(p []byte, s string) []byte {
	p = append(p, '"')
	start := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b >= 0x20 && b < utf8.RuneSelf && b != '"' && b != '\\' {
			i++
			continue
		}
		p = append(p, s[start:i]...)
		r, n := utf8.DecodeRuneInString(s[i:])
		p = appendEscape(p, r)
		i += n
		start = i
	}
	p = append(p, s[start:]...)
	return append(p, '"')
}

func appendEscape(p []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(p, '\\', byte(r))
	case '\b':
		return append(p, '\\', 'b')
	case '\f':
		return append(p, '\\', 'f')
	case '\n':
		return append(p, '\\', 'n')
	case '\r':
		return append(p, '\\', 'r')
	case '\t':
		return append(p, '\\', 't')
	}
	unit := func(u rune) {
		p = append(p, '\\', 'u', hexDigits[u>>12&15], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
	}
	if r > 0xffff {
		high, low := utf16.EncodeRune(r)
		unit(high)
		r = low
	}
	unit(r)
	return p
}

package all

import (
	"errors"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/errs"
)

func TestOpen(t *testing.T) {
	none := func(string) string { return "" }
	for _, name := range []string{
		"etcd://h1:2379,h2:2379", "etcd://h1:2379;h2:2379", "h:2379", "redis://h", "redis://[::1]:6379", "redis://u:p@h:6379/3",
		"http://h:8080/metadata", "https://h/metadata",
	} {
		s, err := Open(name, none)
		if err != nil || s == nil {
			t.Errorf("%s: %v, %v", name, s, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
	for _, name := range []string{"", PeerToPeer} {
		if s, err := Open(name, none); s != nil || err != nil {
			t.Errorf("%q: %v, %v, want no store", name, s, err)
		}
	}
	for _, name := range []string{"etcd://", "redis://", "redis://h:1/x", "redis://h:1?x", "zookeeper://h:1", "http://", "://", "redis://u:hush@:1/300"} {
		s, err := Open(name, none)
		if s != nil || !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%q: %v, %v, want invalid", name, s, err)
		} else if strings.Contains(err.Error(), "hush") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

func TestRedisOptions(t *testing.T) {
	env := map[string]string{"MC_REDIS_USERNAME": "u", "MC_REDIS_PASSWORD": "p", "MC_REDIS_DB_INDEX": "3"}
	for _, c := range []struct {
		rest, addr, user, password string
		db                         int
	}{
		{"h", "h:12001", "u", "p", 3},
		{"h:6379", "h:6379", "u", "p", 3},
		{"[::1]", "[::1]:12001", "u", "p", 3},
		{"a:b@h:1/4", "h:1", "a", "b", 4},
	} {
		o, err := redisOptions(c.rest, func(k string) string { return env[k] })
		if err != nil || o.Addr != c.addr || o.Username != c.user || o.Password != c.password || o.DB != c.db {
			t.Errorf("%s: %+v, %v, want %+v", c.rest, o, err, c)
		}
	}
	delete(env, "MC_REDIS_PASSWORD")
	if o, err := redisOptions("h", func(k string) string { return env[k] }); err != nil || o.Username != "" || o.DB != 3 {
		t.Errorf("a user without a password: %+v, %v", o, err)
	}
	env["MC_REDIS_DB_INDEX"] = "256"
	if o, err := redisOptions("h", func(k string) string { return env[k] }); !errors.Is(err, errs.ErrInvalid) {
		t.Errorf("%+v, %v", o, err)
	}
}

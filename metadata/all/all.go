// Package all opens the metadata store that a URL names, in Mooncake's forms:
//
//	etcd://HOST:PORT,HOST:PORT    or HOST:PORT alone
//	redis://HOST[:PORT]           port 12001 unless it is given
//	http://HOST:PORT/metadata     or https
//	P2PHANDSHAKE                  no store: names are host:port
//
// It is for programs; the library is given a metadata.Store.
package all

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/etcd"
	"github.com/tideway-io/tideway/metadata/httpkv"
	"github.com/tideway-io/tideway/metadata/redis"
)

// PeerToPeer is the name of no store.
const PeerToPeer = "P2PHANDSHAKE"

// Store is a metadata.Store that is closed after the engines that use it.
type Store interface {
	metadata.Store
	Close() error
}

// Open opens the store that name stands for; nil for PeerToPeer and "". Nothing
// is sent yet. Getenv tells what users of Mooncake set in their environment:
// MC_REDIS_USERNAME, MC_REDIS_PASSWORD and MC_REDIS_DB_INDEX.
func Open(name string, getenv func(string) string) (Store, error) {
	if name == "" || name == PeerToPeer {
		return nil, nil
	}
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok {
		scheme, rest = "etcd", name
	}
	switch scheme {
	case "etcd":
		return open(etcd.New(etcd.Options{Endpoints: strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == ';' })}))
	case "redis":
		o, err := redisOptions(rest, getenv)
		if err != nil {
			return nil, err
		}
		return open(redis.New(o))
	case "http", "https":
		return open(httpkv.New(httpkv.Options{URL: name}))
	}
	return nil, errs.New(errs.Invalid, "open metadata store", "%q: no store of kind %q; want etcd://, redis://, http://, https:// or %s", name, scheme, PeerToPeer)
}

// open keeps a nil pointer from becoming a Store.
func open[S Store](s S, err error) (Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Cluster is the cluster that users of Mooncake have set in their environment.
func Cluster(getenv func(string) string) string { return getenv("MC_METADATA_CLUSTER_ID") }

// redisPort is the port of a redis:// without one. It is not Redis's own, but
// the one that all engines of a cluster agree on.
const redisPort = "12001"

// redisOptions reads [USER:PASSWORD@]HOST[:PORT][/DB].
func redisOptions(rest string, getenv func(string) string) (redis.Options, error) {
	u, err := url.Parse("redis://" + rest)
	if err != nil || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return redis.Options{}, errs.New(errs.Invalid, "open metadata store", "%q, want redis://HOST[:PORT]", "redis://"+hidden(rest))
	}
	port := u.Port()
	if port == "" {
		port = redisPort
	}
	o := redis.Options{Addr: net.JoinHostPort(u.Hostname(), port), Password: getenv("MC_REDIS_PASSWORD")}
	if o.Password != "" {
		o.Username = getenv("MC_REDIS_USERNAME")
	}
	if p, ok := u.User.Password(); ok {
		o.Username, o.Password = u.User.Username(), p
	}
	db := getenv("MC_REDIS_DB_INDEX")
	if path := strings.Trim(u.Path, "/"); path != "" {
		db = path
	}
	if db == "" {
		return o, nil
	}
	if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 || o.DB > 255 {
		return o, errs.New(errs.Invalid, "open metadata store", "redis database %q, want 0 to 255", db)
	}
	return o, nil
}

// hidden is text without what may be a password.
func hidden(text string) string {
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		return "…" + text[i:]
	}
	return text
}

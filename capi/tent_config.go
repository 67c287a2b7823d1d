//go:build linux && cgo

package main

// #include <stdint.h>
// #include <stdlib.h>
import "C"

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata/all"
)

// maxConfig bounds a configuration file.
const maxConfig = 1 << 20

//export twTentFile
func twTentFile(path *C.char, failure **C.char) *C.char {
	document, err := readConfig(path)
	if err != nil {
		fail(err)
		*failure = C.CString(err.Error())
		return nil
	}
	return C.CString(document)
}

// readConfig returns the text of a configuration: of a file, or, as programs for
// the original hand it in, of the document itself.
func readConfig(path *C.char) (string, error) {
	name, err := text("load configuration", "path", path)
	if err != nil {
		return "", err
	}
	document := []byte(name)
	if !strings.HasPrefix(strings.TrimSpace(name), "{") {
		st, err := os.Stat(name)
		if err == nil && (!st.Mode().IsRegular() || st.Size() > maxConfig) {
			err = fmt.Errorf("%d bytes, want a regular file of at most %d", st.Size(), maxConfig)
		}
		if err == nil {
			document, err = os.ReadFile(name)
		}
		if err != nil {
			return "", &errs.Error{Op: "load configuration", Reason: errs.Invalid, Detail: name, Err: err}
		}
	}
	_, err = flatten(document)
	return string(document), err
}

// flatten returns the settings of a JSON object, those of objects inside it with
// a slash between the names.
func flatten(document []byte) (map[string]string, error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var root map[string]any
	if err := d.Decode(&root); err != nil {
		return nil, &errs.Error{Op: "load configuration", Reason: errs.Invalid, Detail: "want one JSON object", Err: err}
	}
	all := map[string]string{}
	flattenInto(all, "", root)
	return all, nil
}

func flattenInto(all map[string]string, prefix string, from map[string]any) {
	for k, v := range from {
		if inner, ok := v.(map[string]any); ok {
			flattenInto(all, prefix+k+"/", inner)
			continue
		}
		all[prefix+k] = fmt.Sprint(v)
	}
}

//export twTentCreate
func twTentCreate(pairs *C.char, n C.size_t) C.uintptr_t {
	var handle uint64
	err := func() (err error) {
		defer guard(&err)
		settings, err := settingsOf(unsafe.Slice((*byte)(unsafe.Pointer(pairs)), n))
		if err != nil {
			return err
		}
		conn, err := settings.store()
		if err != nil {
			return err
		}
		var unused []string
		e, err := create(conn, func(env *environment) (cfg tideway.Config, err error) {
			cfg, unused, err = settings.configure(env, conn)
			return cfg, err
		})
		if err == nil {
			handle = lib.add(e)
			for _, key := range unused {
				e.log.Warn("a setting is not used", "key", key)
			}
		}
		return err
	}()
	fail(err)
	return C.uintptr_t(handle)
}

// settings are an engine's, by key.
type settings map[string]string

// settingsOf reads what gate_tent.c kept: keys and values, each ended by a zero.
func settingsOf(kept []byte) (settings, error) {
	words := strings.Split(string(kept), "\x00")
	s := settings{}
	for i := 0; i+1 < len(words); i += 2 {
		switch key, value := words[i], words[i+1]; key {
		case "!":
			return nil, errs.New(errs.Invalid, "create engine", "a setting before was refused: %s", value)
		case "":
			if i+2 == len(words) { // what is behind the last zero
				continue
			}
			more, err := flatten([]byte(value))
			if err != nil {
				return nil, err
			}
			for k, v := range more {
				s[k] = v
			}
		default:
			s[key] = value
		}
	}
	return s, nil
}

// store returns the metadata connection in the words of createTransferEngine.
func (s settings) store() (string, error) {
	kind, servers := s["metadata_type"], s["metadata_servers"]
	switch kind {
	case "", "p2p", all.PeerToPeer:
		return all.PeerToPeer, nil
	case "etcd", "redis", "http":
	default:
		return "", errs.New(errs.Invalid, "create engine", "metadata_type %q, want p2p, etcd, redis or http", kind)
	}
	if servers == "" {
		return "", errs.New(errs.Invalid, "create engine", "metadata_type %q without metadata_servers", kind)
	}
	if strings.Contains(servers, "://") {
		return servers, nil
	}
	return kind + "://" + servers, nil
}

// configure makes the engine's configuration, but for its store, and lists the
// settings that mean nothing here.
func (s settings) configure(env *environment, conn string) (cfg tideway.Config, unused []string, err error) {
	cfg = tideway.Config{Listen: "0.0.0.0:0", ConnectTimeout: env.connectTimeout}
	port, err := strconv.ParseUint("0"+s["rpc_server_port"], 10, 16)
	if err != nil {
		return cfg, nil, errs.New(errs.Invalid, "create engine", "rpc_server_port %q, want 0 to 65535", s["rpc_server_port"])
	}
	if host := strings.Trim(s["rpc_server_hostname"], "[]"); host != "" {
		cfg.Advertise = host
		env.ipv6 = env.ipv6 || net.ParseIP(host) != nil && net.ParseIP(host).To4() == nil
	}
	if env.ipv6 {
		cfg.Listen = "[::]:0"
	}
	cfg.Listen = strings.TrimSuffix(cfg.Listen, "0") + strconv.FormatUint(port, 10)
	if conn != all.PeerToPeer {
		cfg.Name, cfg.Cluster = s["local_segment_name"], all.Cluster(os.Getenv)
	}
	if text, ok := s["log_level"]; ok {
		level, known := map[string]slog.Level{"info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError}[text]
		if !known {
			return cfg, nil, errs.New(errs.Invalid, "create engine", "log_level %q, want info, warning or error", text)
		}
		env.logLevel = level
	}
	for key := range s {
		switch key {
		case "metadata_type", "metadata_servers", "local_segment_name", "rpc_server_hostname", "rpc_server_port", "log_level":
		default:
			unused = append(unused, key)
		}
	}
	slices.Sort(unused)
	return cfg, unused, nil
}

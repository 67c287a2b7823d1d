package tideway

import (
	"errors"
	"testing"
	"time"
)

// TestMooncakeFromEnv: what Mooncake's users set works here, and what Mooncake
// does not accept is left alone, and said.
func TestMooncakeFromEnv(t *testing.T) {
	usual := Mooncake{MinPort: 15000, MaxPort: 17000}
	for _, c := range []struct {
		env     map[string]string
		want    Mooncake
		ignored int
	}{
		{nil, usual, 0},
		{map[string]string{"MC_MIN_RPC_PORT": "20000", "MC_MAX_RPC_PORT": "20003"}, Mooncake{MinPort: 20000, MaxPort: 20003}, 0},
		{map[string]string{"MC_MIN_RPC_PORT": "40000", "MC_MAX_RPC_PORT": "40010"}, usual, 1},
		{map[string]string{"MC_MIN_RPC_PORT": "16000", "MC_MAX_RPC_PORT": "15000"}, usual, 1},
		{map[string]string{"MC_MIN_RPC_PORT": "x"}, usual, 1},
		{map[string]string{"MC_TCP_PROTO": "1", "MC_TCP_LANES_PER_PEER": "4", "MC_TCP_MAX_CONNECTIONS_PER_PEER": "2"},
			Mooncake{MinPort: 15000, MaxPort: 17000, Version1: true, Lanes: 4}, 0},
		{map[string]string{"MC_TCP_PROTO": "2", "MC_TCP_LANES_PER_PEER": "17"}, usual, 1},
		{map[string]string{"MC_TCP_STATUS_TIMEOUT_SEC": "30", "MC_TE_METADATA_REFRESH_INTERVAL_SECONDS": "5", "MC_HANDSHAKE_MAX_LENGTH": "2097152"},
			Mooncake{MinPort: 15000, MaxPort: 17000, StatusTimeout: 30 * time.Second, Refresh: 5 * time.Second, MaxHandshake: 2 << 20}, 0},
		{map[string]string{"MC_HANDSHAKE_MAX_LENGTH": "1000"}, usual, 1},
	} {
		got, ignored := MooncakeFromEnv(func(name string) string { return c.env[name] })
		if got != c.want || len(ignored) != c.ignored {
			t.Errorf("%v: %+v, %q", c.env, got, ignored)
		}
	}
}

func TestMooncakeConfig(t *testing.T) {
	for _, m := range []Mooncake{
		{MinPort: 5}, {MinPort: 9, MaxPort: 8}, {MaxHandshake: 5}, {Refresh: time.Millisecond}, {StatusTimeout: -1}, {Lanes: 17},
	} {
		if e, err := Open(t.Context(), Config{Mooncake: &m}); e != nil || !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

package rig

import (
	"errors"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestCheckEnvironment(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, env, want string // env is empty for no sentinel
		get             string
		refused, other  bool
	}{
		{name: "Test", env: "test", get: "test"},
		{name: "Dev", env: "dev", get: "dev"},
		{name: "DevIsExpected", env: "dev", want: "dev", get: "dev"},
		{name: "TestIsNotDev", env: "test", want: "dev", get: "test", other: true},
		{name: "Sandbox", env: "sandbox", refused: true},
		{name: "Unknown", env: "production", refused: true},
		{name: "SandboxIsExpected", env: "sandbox", want: "sandbox", refused: true},
		{name: "NoSentinelAndNoName", refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := testenv.Pool(t, testenv.Database(t))
			if c.env != "" {
				if _, err := pool.Exec(t.Context(), `insert into environment_sentinel (id, env) values (1, $1)`, c.env); err != nil {
					t.Fatal(err)
				}
			}
			got, err := CheckEnvironment(t.Context(), pool, c.want)
			if got != c.get || errors.Is(err, ErrEnvironment) != c.refused || errors.As(err, new(*postgres.EnvironmentError)) != c.other || (err == nil) != (!c.refused && !c.other) {
				t.Errorf("CheckEnvironment: got %q, %v; want %q, refused %v, another one %v", got, err, c.get, c.refused, c.other)
			}
			if c.refused && !strings.Contains(err.Error(), "environment_sentinel") {
				t.Errorf("CheckEnvironment: got %q, want it to say where to correct it", err)
			}
		})
	}
}

package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Names of faults of the index.
const (
	WriteBlock   = "write-block"
	AliasRemoved = "alias-removed"
)

func indices() []Fault {
	return []Fault{
		// What weft sends meanwhile ends in failed, until its breaker opens: it must be visible.
		onIndex(WriteBlock, "the index is blocked for writes", func(ctx context.Context, i *Injection, broken bool) error {
			var value any // null takes the setting away
			if broken {
				value = true
			}
			return i.Elastic.Do(ctx, http.MethodPut, "/"+url.PathEscape(i.index)+"/_settings", map[string]any{"index.blocks.write": value}, nil)
		}),
		onIndex(AliasRemoved, "the alias of the index is removed and put back", func(ctx context.Context, i *Injection, broken bool) error {
			action := "add"
			if broken {
				action = "remove"
			}
			return i.Elastic.Do(ctx, http.MethodPost, "/_aliases", map[string]any{"actions": []any{
				map[string]any{action: map[string]any{"index": i.index, "alias": i.Index}},
			}}, nil)
		}),
	}
}

// onIndex changes the index behind the alias, and changes it back.
func onIndex(name, about string, set func(ctx context.Context, i *Injection, broken bool) error) Fault {
	bounded := func(ctx context.Context, i *Injection, broken bool) error {
		ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
		defer cancel()
		if err := set(ctx, i, broken); err != nil {
			return fmt.Errorf("%s on %s: %w", name, i.index, err)
		}
		return nil
	}
	return Fault{
		Name: name, About: about, Share: 1, Draw: lasts(500*time.Millisecond, 2500*time.Millisecond),
		Inject: func(ctx context.Context, i *Injection) error {
			if err := i.findIndex(ctx); err != nil {
				return err
			}
			return bounded(ctx, i, true)
		},
		Heal: func(ctx context.Context, i *Injection) error {
			if i.index == "" {
				return nil
			}
			return bounded(ctx, i, false)
		},
	}
}

// findIndex looks up the index behind the alias.
func (i *Injection) findIndex(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	var found map[string]any
	if err := i.Elastic.Do(ctx, http.MethodGet, "/_alias/"+i.Index, nil, &found); err != nil {
		return fmt.Errorf("look up the alias: %w", err)
	}
	for index := range found {
		i.index = index
		return nil
	}
	return Skip("the index has no alias")
}

package faults

import (
	"context"
	"net/http"
	"net/url"
	"time"
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
			var value any
			if broken {
				value = true
			}
			return i.set(ctx, "index.blocks.write", value)
		}),
		onIndex(AliasRemoved, "the alias of the index is removed and put back", func(ctx context.Context, i *Injection, broken bool) error {
			action := "add"
			if broken {
				action = "remove"
			}
			return i.Ask(ctx, action+" the alias of "+i.index, http.MethodPost, "/_aliases", map[string]any{"actions": []any{
				map[string]any{action: map[string]any{"index": i.index, "alias": i.Index}},
			}}, nil)
		}),
	}
}

// onIndex changes the index behind the alias, and changes it back.
func onIndex(name, about string, set func(ctx context.Context, i *Injection, broken bool) error) Fault {
	return Fault{
		Name: name, About: about, Share: 1, Draw: lasts(500*time.Millisecond, 2500*time.Millisecond),
		Inject: func(ctx context.Context, i *Injection) error {
			var err error
			if i.index, err = i.InUse(ctx); err != nil {
				return err
			}
			return set(ctx, i, true)
		},
		Heal: func(ctx context.Context, i *Injection) error {
			if i.index == "" {
				return nil
			}
			return set(ctx, i, false)
		},
	}
}

// set changes a setting of the index; nil takes it away.
func (i *Injection) set(ctx context.Context, name string, value any) error {
	return i.Ask(ctx, "set "+name+" of "+i.index, http.MethodPut, "/"+url.PathEscape(i.index)+"/_settings", map[string]any{name: value}, nil)
}

package projection

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// Name is the name to register the projection under.
const Name = "contacts_to_mail"

// Webhook puts contacts to a service.
type Webhook struct {
	base   string
	pool   projections.Querier
	client *http.Client
}

// New returns what makes the projection. base is the URL of the service.
func New(base string) projections.Constructor {
	return func(d projections.Deps) (projections.Projection, error) {
		transport := http.DefaultTransport.(*http.Transport).Clone() // its own connections, for Close
		return &Webhook{base: base, pool: d.Pool, client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}, nil
	}
}

// Name implements Projection.
func (w *Webhook) Name() string { return Name }

// Table implements Projection.
func (w *Webhook) Table() string { return "contact_outbox_events" }

// Destination implements Projection.
func (w *Webhook) Destination() string { return "mail service" }

// Close implements Projection.
func (w *Webhook) Close() { w.client.CloseIdleConnections() }

// Ready implements Projection. Weft calls it to learn when an outage is over.
func (w *Webhook) Ready(ctx context.Context) error {
	_, err := w.send(ctx, http.MethodHead, "/", nil)
	return err
}

type contact struct {
	ID      int64  `json:"-"`
	Version int64  `json:"version"`
	Email   string `json:"email"`
}

// contactsQuery reads the state of today, whatever the events say: so it does not matter
// which of several events of a contact is projected. The version outlives the contact.
const contactsQuery = `
select v.entity_id, v.version, coalesce(c.email, '')
from contact_outbox_versions v left join crm.contact c on c.id = v.entity_id
where v.entity_id = any($1)`

// Project implements Projection.
func (w *Webhook) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	ids := outbox.IDs(events, func(e *outbox.Event) *outbox.ID { return &e.Key.ID })
	rows, err := w.pool.Query(ctx, contactsQuery, ids)
	if err != nil {
		return nil, projections.DatabaseFault(ctx, "contacts", err)
	}
	contacts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[contact])
	if err != nil {
		return nil, projections.DatabaseFault(ctx, "contacts", err)
	}
	byID := map[outbox.ID]contact{}
	for _, c := range contacts {
		byID[outbox.Number(c.ID)] = c
	}
	out := make([]outbox.Outcome, len(events))
	for i := range events {
		c := byID[events[i].Key.ID]
		c.Version = max(c.Version, events[i].Version)
		// The proof of leadership may have aged while the others were sent.
		if err := outbox.CheckAuthority(ctx); err != nil {
			return nil, err
		}
		if out[i], err = w.put(ctx, "/contacts/"+events[i].Key.ID.String(), c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// put sends one contact; one without an email is gone. An error is the fault of the service
// or of the network, and every other contact would meet it.
func (w *Webhook) put(ctx context.Context, path string, c contact) (outbox.Outcome, error) {
	method := http.MethodPut
	if c.Email == "" {
		method = http.MethodDelete
	}
	body, err := json.Marshal(c)
	if err != nil {
		return outbox.Reject(outbox.ReasonDeterministic, err.Error()), nil
	}
	status, err := w.send(ctx, method, path, body)
	switch {
	case err != nil:
		return outbox.Outcome{}, err
	case status == http.StatusConflict: // it has a newer version
		return outbox.NoOp(outbox.NoopAlreadyApplied), nil
	case status >= 400:
		return outbox.Reject(outbox.ReasonDeterministic, http.StatusText(status)), nil
	default:
		return outbox.OK(), nil
	}
}

// send returns the status of an answer, or a shared fault. The reasons are a closed set and
// named after Elasticsearch; es_5xx and es_connect say the same of any destination over HTTP.
func (w *Webhook) send(ctx context.Context, method, path string, body []byte) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	res, err := w.client.Do(req)
	if err != nil {
		return 0, &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: err}
	}
	_ = res.Body.Close()
	if res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests {
		return 0, &outbox.Fault{Reason: outbox.ReasonES5xx, Shared: true, Err: fmt.Errorf("%s %s: %s", method, path, res.Status)}
	}
	return res.StatusCode, nil
}

package main

import (
	"strings"
	"testing"
)

// TestLoadSaysThatNobodyLeads holds that whoever loads before an instance runs is told what the
// load will wait for.
func TestLoadSaysThatNobodyLeads(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if r := weft(t, s.env, "load", "products"); r.code != 0 || !strings.Contains(r.errOut, "start weft run; without it the load stops at 20000 open events") {
		t.Errorf("load without an instance: %+v", r)
	}
}

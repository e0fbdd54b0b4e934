//go:build browser

package browsertest

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "write the screenshots of the page into docs")

// accessible has axe look at the page of a tab, and reports what is serious.
func accessible(t *testing.T, b *tab, what string) {
	t.Helper()
	script, err := os.ReadFile("testdata/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	b.do(chromedp.Evaluate(string(script)+"; 0", nil), chromedp.Evaluate(`axe.run(document).then((r) => r.violations
		.filter((v) => v.impact === "serious" || v.impact === "critical")
		.map((v) => v.id + ": " + v.help + ": " + v.nodes.map((n) => n.target.join(" ") + " (" + n.failureSummary + ")").slice(0, 3).join(", ")))`, &found,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if len(found) > 0 {
		t.Errorf("%s: axe finds\n%s", what, strings.Join(found, "\n"))
	}
}

// screenshots takes the pictures of docs/desk.md; -update keeps them.
func (r *rig) screenshots(t *testing.T, in *instance) {
	t.Helper()
	dir := t.TempDir()
	if *update {
		dir = "../../docs"
	}
	alice := r.tab(t, "alice")
	for _, shot := range []struct {
		file, path, colours string
		width, height       int64
	}{
		{"desk-overview.png", "/", "light", 1000, 900},
		{"desk-dead-letters-dark.png", "/failed", "dark", 1000, 560},
		{"desk-preview.png", "/act?action=replay_all", "light", 1000, 520},
		{"desk-phone.png", "/", "light", 360, 760},
	} {
		var png []byte
		alice.do(chromedp.EmulateViewport(shot.width, shot.height), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: shot.colours}}))
		alice.open(in.url + shot.path)
		alice.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
			png, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).WithOptimizeForSpeed(false).Do(ctx)
			return err
		}))
		if len(png) < 1000 || len(png) > 100_000 {
			t.Errorf("%s has %d bytes, want at most 100 kB", shot.file, len(png))
		}
		if err := os.WriteFile(filepath.Join(dir, shot.file), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

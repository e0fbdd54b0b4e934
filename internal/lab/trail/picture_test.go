package trail

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

func TestPicture(t *testing.T) {
	t.Parallel()
	from := time.Unix(1000, 0)
	at := func(s int, v float64) watch.Point {
		return watch.Point{At: from.Add(time.Duration(s) * time.Second), Value: v}
	}
	var b bytes.Buffer
	err := drawPicture(&b, []graph{
		{"A < B", "s", []plot{{"one & two", []watch.Point{at(0, 0.1), at(5, math.NaN()), at(10, 0.2)}}}},
		{"Empty", "ops", nil},
	}, from, from.Add(10*time.Second), []mark{{from.Add(5 * time.Second), "it breaks"}})
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(b.Bytes())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("picture is no XML: %v\n%s", err, &b)
		}
	}
	left, right, low, high := pixel(plotLeft), pixel(plotLeft+plotWidth), pixel(plotTop+plotHeight/2.0), pixel(plotTop)
	for _, want := range []string{
		"A &lt; B", "one &amp; two", "1  it breaks", "200 ms", "10 s",
		"M" + left + " " + low + "M" + right + " " + high, // a gap where there is no number
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("picture: want %q in it:\n%s", want, &b)
		}
	}
}

func TestNiceStep(t *testing.T) {
	t.Parallel()
	for most, want := range map[float64]float64{0: 1, 0.39: 0.1, 1.2: 0.5, 4: 1, 36: 10, 720: 200, 80: 20, 9: 5} {
		if got := niceStep(most); math.Abs(got-want) > 1e-12 {
			t.Errorf("up to %v: got %v, want %v", most, got, want)
		}
	}
}

func TestPartOfAPage(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/page.md"
	write(t, file, "head\n"+walkBegin+"old\n"+walkEnd+"tail\n")
	if err := replacePart(file, walkBegin, walkEnd, "new\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, file), "head\n"+walkBegin+"\nnew\n\n"+walkEnd+"tail\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	write(t, file, "no marks")
	if err := replacePart(file, walkBegin, walkEnd, "new"); err == nil || !strings.Contains(err.Error(), "walk: written by") {
		t.Errorf("page without marks: got %v, want them named", err)
	}
}

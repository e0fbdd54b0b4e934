package trail

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	pageFile    = "observability.md"
	pictureFile = "observability.svg"

	walkBegin = "<!-- walk: written by make trail -->\n"
	walkEnd   = "<!-- end of walk -->\n"
)

// report lets things happen and writes down what was found.
func (l *lab) report(ctx context.Context) error {
	e, err := l.play(ctx)
	if err != nil {
		return err
	}
	graphs, err := l.graphs(ctx, e)
	if err != nil {
		return err
	}
	var text, image bytes.Buffer
	if err := writeWalk(&text, e); err != nil {
		return err
	}
	if err := drawPicture(&image, graphs, e.began, e.ended, e.marks); err != nil {
		return err
	}
	if l.opts.Docs == "" {
		_, err := l.opts.Out.Write(text.Bytes())
		return err
	}
	if err := replacePart(filepath.Join(l.opts.Docs, pageFile), walkBegin, walkEnd, text.String()); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.opts.Docs, pictureFile), image.Bytes(), 0o644); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	return nil
}

// replacePart puts text between two marks of a page.
func replacePart(file, begin, end, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("page %s: no %q … %q", file, begin, end)
	}
	if err := os.WriteFile(file, []byte(head+begin+"\n"+text+"\n"+end+tail), 0o644); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

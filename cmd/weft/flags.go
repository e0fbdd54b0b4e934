package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/outbox"
)

// one wants one argument, which what names.
func one(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(cmd, "want "+what)
		}
		return nil
	}
}

// known wants a name to be one of names.
func known[S ~string](cmd *cobra.Command, what string, name S, names []S) error {
	for _, n := range names {
		if n == name {
			return nil
		}
	}
	return usage(cmd, fmt.Sprintf("%q is no %s: want one of %s", string(name), what, joined(names)))
}

// bounded is a flag of a number or a duration that is not too small.
type bounded[T int | time.Duration] struct {
	value      *T
	least      T
	kind, form string
	parse      func(string) (T, error)
}

// countFlag adds a flag of a whole number.
func countFlag(cmd *cobra.Command, value *int, name string, normal, least int, purpose string) {
	*value = normal
	cmd.Flags().Var(&bounded[int]{value, least, "int", "a whole number", strconv.Atoi}, name, purpose)
}

// durationFlag adds a flag of a duration.
func durationFlag(cmd *cobra.Command, value *time.Duration, name string, normal, least time.Duration, purpose string) {
	*value = normal
	cmd.Flags().Var(&bounded[time.Duration]{value, least, "duration", "a duration such as 500ms, 30s or 5m", time.ParseDuration}, name, purpose)
}

// lockWait adds --wait to a command that changes tables.
func lockWait(cmd *cobra.Command, wait *time.Duration) {
	durationFlag(cmd, wait, "wait", 5*time.Minute, 0, "longest wait for a lock that another session holds")
}

func (b *bounded[T]) Type() string { return b.kind }

func (b *bounded[T]) String() string {
	if b.value == nil { // pflag asks a flag without a value, too
		return ""
	}
	return fmt.Sprint(*b.value)
}

func (b *bounded[T]) Set(text string) error {
	v, err := b.parse(text)
	switch {
	case err != nil:
		return errors.New("want " + b.form)
	case v < b.least:
		return fmt.Errorf("want at least %v", b.least)
	}
	*b.value = v
	return nil
}

// age is a flag that takes a duration, also in days.
type age time.Duration

func (a *age) String() string { return "" }
func (a *age) Type() string   { return "duration" }

func (a *age) Set(s string) error {
	d, err := config.ParseAge(s)
	if err != nil || d <= 0 {
		return errors.New("want a duration of more than 0 such as 30d or 36h")
	}
	*a = age(d)
	return nil
}

// flagError says what a flag takes.
func flagError(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usage(cmd, err.Error())
	}
	want := bad.Unwrap().Error()
	if is[*strconv.NumError](err) {
		want = map[string]string{"bool": "want true or false", "float64": "want a number"}[bad.GetFlag().Value.Type()]
	}
	return usage(cmd, fmt.Sprintf("--%s %q: %s", bad.GetFlag().Name, bad.GetValue(), want))
}

// signature is who gives an order, and why.
type signature struct{ by, why string }

// add adds the flags of an order that must be signed.
func (s *signature) add(cmd *cobra.Command, who string) {
	cmd.Flags().StringVar(&s.by, "by", "", who+" (required)")
	cmd.Flags().StringVar(&s.why, "why", "", "the reason (required)")
}

// check wants a name and a reason that the audit can keep.
func (s signature) check(cmd *cobra.Command) error {
	switch {
	case s.by == "":
		return usage(cmd, "--by is missing: say who you are")
	case s.why == "":
		return usage(cmd, "--why is missing: say the reason")
	}
	if err := (outbox.LetterOrder{By: s.by, Why: s.why}).Validate(); err != nil {
		return usage(cmd, err.Error())
	}
	return nil
}

// person names who runs the command, for the audit: user@host.
func person() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	text := []rune(name + "@" + host)
	return string(text[:min(len(text), 120)])
}

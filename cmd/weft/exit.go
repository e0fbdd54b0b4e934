package main

import (
	"context"
	"errors"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// The exit codes. Go itself exits 2 on a panic, so 2 has no meaning here.
const (
	exitOK           = 0
	exitBad          = 1
	exitInconclusive = 3
	exitUsage        = 64
	exitUnavailable  = 69
	exitInternal     = 70
	exitTryAgain     = 75
	exitRefused      = 77
	exitConfig       = 78
)

// exitError is an error that knows its exit code and says all there is to say.
type exitError struct {
	code int
	msg  string
}

func (e *exitError) Error() string { return e.msg }

func usage(cmd *cobra.Command, msg string) error {
	return &exitError{exitUsage, msg + "; see `" + cmd.CommandPath() + " --help`"}
}

// explain returns the exit code of err and the lines that tell it.
func explain(err error) (code int, lines []string) {
	if err == nil {
		return exitOK, nil
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code, []string{e.msg}
	}
	if ps := problems(err); len(ps) > 0 {
		return exitConfig, ps
	}
	code, msg := diagnose(err)
	return code, []string{msg}
}

func problems(err error) (lines []string) {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range j.Unwrap() {
			lines = append(lines, problems(e)...)
		}
		return lines
	}
	if p, ok := errors.AsType[*config.Problem](err); ok {
		return []string{"configuration: " + p.Error()}
	}
	return nil
}

// diagnose also knows the sentinels of packages that stand on nothing of ours.
func diagnose(err error) (int, string) {
	err = daemon.Cause(err)
	if code := ownCode(err); code != exitOK {
		return code, records.Plain(err.Error())
	}
	if silent, ok := errors.AsType[*elastic.UnansweredError](err); ok && !errors.Is(err, context.Canceled) {
		return exitUnavailable, records.Plain(silent.Error() + "; " + silent.Remedy())
	}
	kind, msg := postgres.Diagnose(err)
	switch kind {
	case postgres.Unreachable, postgres.TooManyConnections:
		return exitUnavailable, msg
	case postgres.MissingMigration, postgres.ReadOnly:
		return exitTryAgain, msg
	case postgres.WrongPassword, postgres.WrongEnvironment, postgres.PermissionDenied:
		return exitRefused, msg
	case postgres.UnknownDatabase, postgres.TLSRefused, postgres.Pooler, postgres.BadParameter:
		return exitConfig, msg
	default:
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL): // who has it may leave; an interface may come
		return exitTryAgain, records.Plain(err.Error())
	case errors.Is(err, syscall.EACCES):
		return exitRefused, records.Plain(err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable, "no answer in time: " + records.Plain(err.Error()) + "; " + postgres.SayBusy
	default:
		return exitInternal, msg
	}
}

// ownCode returns the exit code of an error of ours that says all there is to say; exitOK for others.
func ownCode(err error) int {
	switch {
	case errors.Is(err, elastic.ErrWindow), errors.Is(err, elastic.ErrOtherIndex): // the first is an ErrTooLarge
		return exitTryAgain
	case errors.Is(err, elastic.ErrTooLarge), errors.Is(err, elastic.ErrUnreadable):
		return exitUnavailable
	case is[*migrations.BehindError](err), is[*migrations.LockError](err), elastic.IsMissing(err), errors.Is(err, elastic.ErrWriter), errors.Is(err, elastic.ErrClosed), errors.Is(err, elastic.ErrBlocked):
		return exitTryAgain
	case is[*migrations.AheadError](err), is[*migrations.RightsError](err), is[*migrations.ActiveError](err), is[*migrations.PresentError](err),
		is[*migrations.OutboxError](err), is[*migrations.RefusedError](err), is[*outbox.ComparingError](err), errors.Is(err, elastic.ErrRefused):
		return exitRefused
	case is[*migrations.ShardsError](err), is[*migrations.SchemaError](err), is[*outbox.ShapeError](err), errors.Is(err, leader.ErrServerTooOld), errors.Is(err, elastic.ErrVersion), errors.Is(err, elastic.ErrProduct),
		is[*projections.SourceError](err):
		return exitConfig
	default:
		return exitOK
	}
}

// is reports whether an error of the type is in err.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

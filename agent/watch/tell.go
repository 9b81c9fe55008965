package watch

import "log/slog"

// Tell returns what could not be done, for the agent's report, "" if err is nil.
// It logs it where it is news: where it is not what was told before, or was tried
// anew.
func Tell(log *slog.Logger, err error, before string, tried bool) string {
	if err == nil {
		return ""
	}
	if err.Error() != before || tried {
		log.Error("cannot apply", "error", err)
	}
	return err.Error()
}

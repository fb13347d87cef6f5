package web

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// healthTTL is how old an answer about health may be: asking takes the
// database's only writer for a moment.
const healthTTL = time.Second

// healthPage answers 200 if database and queue work, else 503. The reason is in
// the log.
func (s *site) healthPage(w http.ResponseWriter, r *http.Request) {
	err := s.health.get(r.Context(), s.Now, healthTTL, func(ctx context.Context) error {
		err := s.Records.Health(ctx, s.Now())
		if err != nil {
			s.Log.Error("unhealthy", "error", err)
		}
		return err
	})
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "unhealthy: database or queue do not work; the controller's log says why")
		return
	}
	fmt.Fprintln(w, "ok")
}

-- +goose Up

-- Counting for metrics reads these indexes alone: the tables' rows are large.
CREATE INDEX deliveries_state ON deliveries (state);
CREATE INDEX executions_times ON executions (state, reserved_at, started_at, finished_at);

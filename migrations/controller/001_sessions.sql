-- +goose Up

-- Times are microseconds since 1970, digests and trees 64 hex digits.

-- Webhook deliveries, stored before they are answered.
CREATE TABLE deliveries (
    guid TEXT NOT NULL PRIMARY KEY CHECK (length(guid) BETWEEN 1 AND 128),
    event TEXT NOT NULL,
    action TEXT NOT NULL,
    installation_id INTEGER NOT NULL,
    repo TEXT NOT NULL,
    number INTEGER NOT NULL,
    body BLOB NOT NULL,
    body_sha256 TEXT NOT NULL CHECK (length(body_sha256) = 64),
    state TEXT NOT NULL CHECK (state IN ('received', 'handled', 'ignored')),
    note TEXT NOT NULL DEFAULT '',
    received_at INTEGER NOT NULL,
    done_at INTEGER,
    CHECK ((state = 'received') = (done_at IS NULL))
) STRICT;

CREATE INDEX deliveries_open ON deliveries (guid) WHERE state = 'received';

-- A known GUID with another body: recorded and refused.
CREATE TABLE delivery_conflicts (
    guid TEXT NOT NULL REFERENCES deliveries (guid),
    body_sha256 TEXT NOT NULL CHECK (length(body_sha256) = 64),
    event TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (guid, body_sha256)
) STRICT;

-- Pull requests as the API described them last.
CREATE TABLE pull_requests (
    repo TEXT NOT NULL CHECK (repo LIKE '_%/_%'),
    number INTEGER NOT NULL CHECK (number > 0),
    installation_id INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
    base_sha TEXT NOT NULL CHECK (length(base_sha) = 40),
    head_sha TEXT NOT NULL CHECK (length(head_sha) = 40),
    synced_at INTEGER NOT NULL,
    PRIMARY KEY (repo, number)
) STRICT;

-- A session is one frozen target of a pull request.
CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY CHECK (length(id) = 36),
    repo TEXT NOT NULL,
    number INTEGER NOT NULL,
    installation_id INTEGER NOT NULL,
    base_sha TEXT NOT NULL CHECK (length(base_sha) = 40),
    head_sha TEXT NOT NULL CHECK (length(head_sha) = 40),
    state TEXT NOT NULL CHECK (state IN ('freezing', 'ready', 'failed', 'superseded', 'closed')),
    -- The canonical target document. Its digests name the blobs of bundle, diff
    -- and trusted context, which are durable before the document is.
    target BLOB,
    target_sha256 TEXT CHECK (length(target_sha256) = 64),
    input_tree TEXT CHECK (length(input_tree) = 64),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    FOREIGN KEY (repo, number) REFERENCES pull_requests (repo, number),
    CHECK ((target IS NULL) = (target_sha256 IS NULL)),
    CHECK ((target IS NULL) = (input_tree IS NULL)),
    CHECK (state <> 'freezing' OR target IS NULL),
    CHECK (state <> 'ready' OR target IS NOT NULL)
) STRICT;

-- One session of a pull request is current.
CREATE UNIQUE INDEX sessions_current ON sessions (repo, number)
    WHERE state IN ('freezing', 'ready', 'failed');
CREATE INDEX sessions_pull ON sessions (repo, number, created_at);

-- The checks of a session as they were configured when it was made. A check's
-- beat is its number in the session.
CREATE TABLE session_checks (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    beat INTEGER NOT NULL CHECK (beat > 0),
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    profile_name TEXT NOT NULL,
    profile BLOB NOT NULL, -- the canonical trusted profile
    PRIMARY KEY (session_id, beat),
    UNIQUE (session_id, name)
) STRICT;

-- A check run and what it has to show: an outbox. Each change raises version,
-- a successful post raises posted_version to the version it showed. A result
-- may be shown as being in progress while the same check of another pull request
-- with the same head is not over; shown_completed tells that it is shown as such.
CREATE TABLE check_runs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    external_id TEXT NOT NULL UNIQUE CHECK (length(external_id) = 36),
    session_id TEXT NOT NULL,
    beat INTEGER NOT NULL,
    round INTEGER NOT NULL CHECK (round > 0), -- a re-run is another round
    state TEXT NOT NULL CHECK (state IN ('queued', 'in_progress', 'passed', 'contradicted', 'faulted',
        'refused', 'superseded', 'cancelled', 'our_fault')),
    fault TEXT, -- JSON
    by_whom TEXT NOT NULL DEFAULT '', -- of superseded: the newer head; of cancelled: who
    github_id INTEGER NOT NULL DEFAULT 0, -- 0 until known
    version INTEGER NOT NULL DEFAULT 1,
    posted_version INTEGER NOT NULL DEFAULT 0,
    shown_completed INTEGER NOT NULL DEFAULT 0 CHECK (shown_completed IN (0, 1)),
    undeliverable TEXT NOT NULL DEFAULT '', -- why it will never be posted
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    completed_at INTEGER,
    UNIQUE (session_id, beat, round),
    FOREIGN KEY (session_id, beat) REFERENCES session_checks (session_id, beat),
    CHECK (posted_version BETWEEN 0 AND version),
    CHECK ((state IN ('queued', 'in_progress')) = (completed_at IS NULL))
) STRICT;

CREATE INDEX check_runs_unposted ON check_runs (id) WHERE posted_version < version AND undeliverable = '';

-- An execution is one proof: one reserved request, run at most once.
CREATE TABLE executions (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq > 0),
    beat INTEGER NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt > 0),
    check_run_id INTEGER NOT NULL REFERENCES check_runs (id),
    challenge TEXT NOT NULL UNIQUE CHECK (length(challenge) = 64),
    request BLOB NOT NULL, -- canonical, exactly as the gateway gets it
    request_sha256 TEXT NOT NULL CHECK (length(request_sha256) = 64),
    predicted INTEGER NOT NULL CHECK (predicted BETWEEN 0 AND 255),
    state TEXT NOT NULL CHECK (state IN ('reserved', 'running', 'passed', 'contradicted', 'faulted',
        'refused', 'superseded', 'cancelled', 'our_fault')),
    fault TEXT, -- JSON
    -- The end of the live output, for an execution without a receipt.
    stdout_tail BLOB,
    stderr_tail BLOB,
    reserved_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    UNIQUE (session_id, seq),
    FOREIGN KEY (session_id, beat) REFERENCES session_checks (session_id, beat),
    CHECK ((state IN ('reserved', 'running')) = (finished_at IS NULL)),
    CHECK (state <> 'reserved' OR started_at IS NULL),
    CHECK (state NOT IN ('running', 'passed', 'contradicted') OR started_at IS NOT NULL)
) STRICT;

-- A check run has at most one execution that is not over.
CREATE UNIQUE INDEX executions_open ON executions (check_run_id) WHERE state IN ('reserved', 'running');
CREATE INDEX executions_check_run ON executions (check_run_id, seq);

-- The consumed evidence of an execution: at most one terminal receipt each.
CREATE TABLE evidence (
    execution_id INTEGER NOT NULL PRIMARY KEY REFERENCES executions (id),
    capability BLOB NOT NULL, -- the exact envelopes
    receipt BLOB NOT NULL,
    capability_sha256 TEXT NOT NULL CHECK (length(capability_sha256) = 64),
    receipt_sha256 TEXT NOT NULL UNIQUE CHECK (length(receipt_sha256) = 64),
    signer_id TEXT NOT NULL,
    executor_id TEXT NOT NULL,
    key_id TEXT NOT NULL, -- fingerprint of the key that verified
    exit_code INTEGER NOT NULL CHECK (exit_code BETWEEN 0 AND 255),
    input_tree TEXT NOT NULL CHECK (length(input_tree) = 64),
    output_tree TEXT NOT NULL CHECK (length(output_tree) = 64),
    started_at INTEGER NOT NULL, -- of the job, as signed
    finished_at INTEGER NOT NULL,
    -- Blobs, durable before this row is.
    output_sha256 TEXT NOT NULL CHECK (length(output_sha256) = 64),
    output_bytes INTEGER NOT NULL CHECK (output_bytes > 0),
    stdout_sha256 TEXT NOT NULL CHECK (length(stdout_sha256) = 64),
    stdout_bytes INTEGER NOT NULL CHECK (stdout_bytes >= 0),
    stderr_sha256 TEXT NOT NULL CHECK (length(stderr_sha256) = 64),
    stderr_bytes INTEGER NOT NULL CHECK (stderr_bytes >= 0),
    validation TEXT NOT NULL, -- JSON: what was checked, and how it ended
    -- The gateway's directory, removed by it once this is acknowledged.
    transport TEXT NOT NULL,
    consumed_at INTEGER NOT NULL,
    acknowledged_at INTEGER
) STRICT;

CREATE INDEX evidence_unacknowledged ON evidence (execution_id) WHERE acknowledged_at IS NULL;

-- Evidence for an execution that has another one already: refused.
CREATE TABLE evidence_conflicts (
    execution_id INTEGER NOT NULL REFERENCES executions (id),
    receipt_sha256 TEXT NOT NULL CHECK (length(receipt_sha256) = 64),
    capability_sha256 TEXT NOT NULL CHECK (length(capability_sha256) = 64),
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (execution_id, receipt_sha256, capability_sha256)
) STRICT;

-- The following rules are held against every writer.

-- +goose StatementBegin
CREATE TRIGGER executions_terminal BEFORE UPDATE ON executions
WHEN OLD.state NOT IN ('reserved', 'running')
BEGIN
    SELECT RAISE(ABORT, 'a terminal execution never changes');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER executions_proven BEFORE UPDATE OF state ON executions
WHEN NEW.state IN ('passed', 'contradicted')
    AND NOT EXISTS (SELECT 1 FROM evidence WHERE execution_id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'an execution without evidence has no result');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER executions_reserved_unchanged BEFORE UPDATE OF session_id, seq, beat, attempt, check_run_id, challenge,
    request, request_sha256, predicted ON executions
BEGIN
    SELECT RAISE(ABORT, 'a reservation never changes');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER evidence_of_running BEFORE INSERT ON evidence
WHEN (SELECT state FROM executions WHERE id = NEW.execution_id) <> 'running'
BEGIN
    SELECT RAISE(ABORT, 'evidence belongs to a running execution');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER evidence_unchanged BEFORE UPDATE OF execution_id, capability, receipt, capability_sha256, receipt_sha256,
    signer_id, executor_id, key_id, exit_code, input_tree, output_tree, started_at, finished_at, output_sha256,
    output_bytes, stdout_sha256, stdout_bytes, stderr_sha256, stderr_bytes, validation, transport, consumed_at ON evidence
BEGIN
    SELECT RAISE(ABORT, 'consumed evidence never changes');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER check_runs_terminal BEFORE UPDATE OF state, fault, by_whom, completed_at ON check_runs
WHEN OLD.state NOT IN ('queued', 'in_progress')
BEGIN
    SELECT RAISE(ABORT, 'a completed check run is never reopened');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER check_runs_shown BEFORE UPDATE OF version ON check_runs
WHEN OLD.shown_completed = 1
BEGIN
    SELECT RAISE(ABORT, 'a check run that is shown as completed has nothing more to show');
END;
-- +goose StatementEnd

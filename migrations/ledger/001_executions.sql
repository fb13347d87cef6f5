-- +goose Up
CREATE TABLE executions (
    -- SHA-256 of the canonical replay identity: at most one job and one
    -- terminal receipt ever belong to it.
    replay_key TEXT NOT NULL PRIMARY KEY CHECK (length(replay_key) = 64),
    session_id TEXT NOT NULL,
    challenge TEXT NOT NULL CHECK (length(challenge) = 64),
    request_sha256 TEXT NOT NULL CHECK (length(request_sha256) = 64),
    state TEXT NOT NULL CHECK (state IN ('preparing', 'ready', 'executing', 'complete', 'failed')),
    -- The signed envelopes as published, with the digests that each read checks.
    capability BLOB,
    capability_sha256 TEXT CHECK (length(capability_sha256) = 64),
    capability_payload_sha256 TEXT CHECK (length(capability_payload_sha256) = 64),
    receipt BLOB,
    receipt_sha256 TEXT CHECK (length(receipt_sha256) = 64),
    -- What the gateway's own validation of the receipt established.
    signer_id TEXT,
    key_id TEXT,
    input_tree TEXT,
    output_tree TEXT,
    exit_code INTEGER CHECK (exit_code BETWEEN 0 AND 255),
    validated_at INTEGER, -- microseconds since 1970, as the other times
    -- Why there will be no receipt: one line for people, one object for programs.
    reason TEXT,
    fault TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- A challenge is used once in its session, whatever else differs.
    UNIQUE (session_id, challenge),
    CHECK (state NOT IN ('ready', 'executing', 'complete') OR capability IS NOT NULL),
    CHECK ((capability IS NULL) = (capability_sha256 IS NULL)),
    CHECK ((capability IS NULL) = (capability_payload_sha256 IS NULL)),
    CHECK ((state = 'complete') = (receipt IS NOT NULL)),
    CHECK ((receipt IS NULL) = (receipt_sha256 IS NULL)),
    CHECK (receipt IS NULL OR (signer_id IS NOT NULL AND key_id IS NOT NULL AND input_tree IS NOT NULL
        AND output_tree IS NOT NULL AND exit_code IS NOT NULL AND validated_at IS NOT NULL)),
    CHECK ((state = 'failed') = (reason IS NOT NULL))
) STRICT;

CREATE INDEX executions_unfinished ON executions (replay_key)
    WHERE state IN ('preparing', 'ready', 'executing');

-- The files of a complete execution; they lie in the state directory.
CREATE TABLE artifacts (
    replay_key TEXT NOT NULL REFERENCES executions (replay_key),
    name TEXT NOT NULL CHECK (name IN ('request.json', 'output.bundle', 'stdout', 'stderr')),
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    PRIMARY KEY (replay_key, name)
) STRICT;

-- +goose StatementBegin
CREATE TRIGGER executions_terminal BEFORE UPDATE ON executions
WHEN OLD.state IN ('complete', 'failed')
BEGIN
    SELECT RAISE(ABORT, 'a terminal execution never changes');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER executions_kept BEFORE DELETE ON executions
WHEN OLD.state NOT IN ('preparing', 'ready')
BEGIN
    SELECT RAISE(ABORT, 'an execution that started is never forgotten');
END;
-- +goose StatementEnd

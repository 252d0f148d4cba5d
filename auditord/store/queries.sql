-- The statements of record stores that both databases share. Names in braces: auditord/store/statements.py.

-- name: find_records
-- Records by id, as far as plans need them; the wire text of finished ones only where it is asked for. Released ones have
-- their releases, and no wire text.
SELECT
    record_id, {micros start_time}, {micros stop_time}, content,
    CASE WHEN :whole OR stop_time IS NULL THEN document END, NULL
FROM {schema}records
WHERE record_id {any ids}
UNION ALL
SELECT record_id, {micros start_time}, {micros stop_time}, content, NULL, release
FROM {schema}released
WHERE record_id {any ids}

-- name: lock_records
-- The same with all wire texts, kept from being changed by others until the transaction ends; always in one order, so that
-- nobody waits in a circle.
SELECT record_id, {micros start_time}, {micros stop_time}, content, document
FROM {schema}records
WHERE record_id {any ids}
ORDER BY record_id
{lock}

-- name: get_documents
-- The wire texts of records; of released ones, their releases.
SELECT record_id, document, NULL
FROM {schema}records
WHERE record_id {any ids}
UNION ALL
SELECT record_id, NULL, release
FROM {schema}released
WHERE record_id {any ids}

-- name: settle_differences
-- Forget the differences of records that have been overwritten.
DELETE FROM {schema}differences
WHERE record_id {any ids}

-- name: list_differences
-- All differences, the newest first, with what is stored now (nothing if it is released).
SELECT
    differences.record_id, {micros differences.seen_at}, nullif(sources.principal, ''), records.document,
    differences.offered
FROM {schema}differences
LEFT JOIN {schema}records ON records.record_id = differences.record_id
INNER JOIN {schema}sources ON sources.source_id = differences.source_id
ORDER BY differences.{arrival} DESC

-- name: list_differences_of
-- The same of one record.
SELECT
    differences.record_id, {micros differences.seen_at}, nullif(sources.principal, ''), records.document,
    differences.offered
FROM {schema}differences
LEFT JOIN {schema}records ON records.record_id = differences.record_id
INNER JOIN {schema}sources ON sources.source_id = differences.source_id
WHERE differences.record_id = :record_id
ORDER BY differences.{arrival} DESC

-- name: versions_of_records
-- The wire texts of what records were.
SELECT number, document
FROM {schema}versions
WHERE record_id {any ids}
{lock}

-- name: versions_with_text
-- The wire texts of former versions that hold a text.
SELECT number, document
FROM {schema}versions
WHERE {place_in}(document, :text) > 0
{lock}

-- name: redact_version
-- Change the wire text of a former version.
UPDATE {schema}versions
SET document = :document
WHERE number = :number

-- name: differences_with_text
-- The wire texts of differences that hold a text.
SELECT record_id, content, offered
FROM {schema}differences
WHERE {place_in}(offered, :text) > 0
{lock}

-- name: forget_difference
-- Forget a difference.
DELETE FROM {schema}differences
WHERE record_id = :record_id AND content = :content

-- name: find_deleted
-- Which records were deleted on purpose, and are not there again.
SELECT DISTINCT record_id
FROM {schema}versions
WHERE
    action = 'delete'
    AND record_id {any ids}
    AND NOT EXISTS (SELECT 1 FROM {schema}records WHERE records.record_id = versions.record_id)
    AND NOT EXISTS (SELECT 1 FROM {schema}released WHERE released.record_id = versions.record_id)

-- name: delete_records
-- Delete records.
DELETE FROM {schema}records
WHERE record_id {any ids}

-- name: list_versions
-- What a record was before each change, the oldest first.
SELECT
    versions.number, versions.action, versions.reason, {micros versions.changed_at}, nullif(changers.principal, ''),
    versions.document, {micros versions.received_at}, {micros versions.updated_at}, nullif(sources.principal, '')
FROM {schema}versions
INNER JOIN {schema}sources AS changers ON changers.source_id = versions.changed_by
INNER JOIN {schema}sources ON sources.source_id = versions.source_id
WHERE versions.record_id = :record_id
ORDER BY versions.number

-- name: unfinished_copy
-- Which store is being copied here.
SELECT source
FROM {schema}unfinished_copy

-- name: find_generation
-- How far a spool has come.
SELECT generation
FROM {schema}spools
WHERE spool_id = :spool_id
{lock}

-- name: set_generation
-- Note how far a spool has come.
INSERT INTO {schema}spools (spool_id, generation)
VALUES (:spool_id, :generation)
ON CONFLICT (spool_id) DO UPDATE SET generation = excluded.generation

-- name: note_daemon
-- Note how a daemon fares.
INSERT INTO {schema}daemons (
    spool_id, host, process, version, state_dir, started_at, seen_at, ended, queued, oldest, quarantined
)
VALUES (
    :spool_id, :host, :process, :version, :state_dir, :started_at, {clock}, :ended, :queued, :oldest, :quarantined
)
ON CONFLICT (spool_id) DO UPDATE SET
    host = excluded.host, process = excluded.process, version = excluded.version, state_dir = excluded.state_dir,
    started_at = excluded.started_at, seen_at = excluded.seen_at, ended = excluded.ended, queued = excluded.queued,
    oldest = excluded.oldest, quarantined = excluded.quarantined

-- name: forget_daemons
-- Forget daemons of which nothing was heard for thirty days.
DELETE FROM {schema}daemons
WHERE {micros_since seen_at} > 2592000000000

-- name: list_daemons
-- The daemons, and the microseconds since each was heard of.
SELECT
    spool_id, host, process, version, state_dir, {micros started_at}, queued, {micros oldest}, quarantined, ended,
    {greatest}({micros_since seen_at}, 0)
FROM {schema}daemons
ORDER BY host, spool_id

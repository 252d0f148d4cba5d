-- The statements of record stores that both databases share. auditord/store/statements.py has the names in braces.

-- name: find_records
-- Records by id, as far as plans need them. Finished records have their wire texts only if requested. Released records
-- have the numbers of their releases, and no wire text.
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
-- Lock records until the transaction ends, always in the same order to prevent deadlocks, and read them like
-- find_records, but with all wire texts.
SELECT record_id, {micros start_time}, {micros stop_time}, content, document
FROM {schema}records
WHERE record_id {any ids}
ORDER BY record_id
{lock}

-- name: get_documents
-- The wire texts of records, and whether they are released.
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
-- All differences, newest first, with the wire texts of the stored records (NULL if released).
SELECT
    differences.record_id, {micros differences.seen_at}, nullif(origins.principal, ''), records.document,
    differences.offered
FROM {schema}differences
LEFT JOIN {schema}records ON records.record_id = differences.record_id
INNER JOIN {schema}origins ON origins.origin_id = differences.origin_id
ORDER BY differences.{arrival} DESC

-- name: list_differences_of
-- The differences of one record.
SELECT
    differences.record_id, {micros differences.seen_at}, nullif(origins.principal, ''), records.document,
    differences.offered
FROM {schema}differences
LEFT JOIN {schema}records ON records.record_id = differences.record_id
INNER JOIN {schema}origins ON origins.origin_id = differences.origin_id
WHERE differences.record_id = :record_id
ORDER BY differences.{arrival} DESC

-- name: versions_of_records
-- The wire texts of former versions of records.
SELECT number, document
FROM {schema}versions
WHERE record_id {any ids}
{lock}

-- name: versions_with_text
-- The wire texts of former versions that contain a text.
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
-- The wire texts of differences that contain a text.
SELECT record_id, content, offered
FROM {schema}differences
WHERE {place_in}(offered, :text) > 0
{lock}

-- name: forget_difference
-- Forget a difference.
DELETE FROM {schema}differences
WHERE record_id = :record_id AND content = :content

-- name: find_deleted
-- Records that were deliberately deleted and have not been added again.
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
-- The former versions of a record, oldest first.
SELECT
    versions.number, versions.action, versions.reason, {micros versions.changed_at}, nullif(changers.principal, ''),
    versions.document, {micros versions.received_at}, {micros versions.updated_at}, nullif(origins.principal, '')
FROM {schema}versions
INNER JOIN {schema}origins AS changers ON changers.origin_id = versions.changed_by
INNER JOIN {schema}origins ON origins.origin_id = versions.origin_id
WHERE versions.record_id = :record_id
ORDER BY versions.number

-- name: unfinished_copy
-- The source of an unfinished copy.
SELECT source
FROM {schema}unfinished_copy

-- name: find_generation
-- The generation of a spool.
SELECT generation
FROM {schema}spools
WHERE spool_id = :spool_id
{lock}

-- name: set_generation
-- Save the generation of a spool.
INSERT INTO {schema}spools (spool_id, generation)
VALUES (:spool_id, :generation)
ON CONFLICT (spool_id) DO UPDATE SET generation = excluded.generation

-- name: note_daemon
-- Save the state of a daemon.
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
-- Forget daemons that have not saved their state for thirty days.
DELETE FROM {schema}daemons
WHERE {micros_since seen_at} > 2592000000000

-- name: list_daemons
-- The daemons, and the microseconds since each saved its state.
SELECT
    spool_id, host, process, version, state_dir, {micros started_at}, queued, {micros oldest}, quarantined, ended,
    {greatest}({micros_since seen_at}, 0)
FROM {schema}daemons
ORDER BY host, spool_id

-- name: has_totals
-- One row if any record has the total of a held amount. The condition is that of an index.
SELECT 1
FROM {schema}records
WHERE core_seconds IS NOT NULL OR memory_seconds IS NOT NULL OR gpu_seconds IS NOT NULL
LIMIT 1

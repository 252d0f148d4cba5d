-- The statements of the record store in PostgreSQL. Many rows travel as one parameter, a JSON array. Names in braces are lists of columns, see
-- auditord/store/columns.py.

-- name: add_records
-- Add records whose ids are all free; fails as a whole otherwise. No record is released after its id was looked for: hold_records waits for all who write records, and they for it, before they see anything.
INSERT INTO auditord.records ({record_columns})
SELECT {record_columns}
FROM jsonb_to_recordset(%(records)s::jsonb) AS offered ({record_types})
WHERE (
    SELECT auditord.refuse_released(gone.record_id)
    FROM auditord.released AS gone
    WHERE gone.record_id = offered.record_id
) IS NULL

-- name: insert_records
-- Add those of the records whose ids are free; find_released must say afterwards that they are not released.
INSERT INTO auditord.records ({record_columns})
SELECT {record_columns}
FROM jsonb_to_recordset(%s::jsonb) AS offered ({record_types})
ON CONFLICT (record_id) DO NOTHING

-- name: copy_records
-- Add many records whose ids are all free; released_among must say afterwards that they are not released.
COPY auditord.records ({record_columns})
FROM STDIN (FORMAT binary)

-- name: released_among
-- Which of the records are released.
SELECT record_id
FROM auditord.released
WHERE EXISTS (SELECT FROM auditord.released) AND record_id = ANY (%(ids)b::text [])

-- name: overwrite_records
-- Put records in the place of the stored ones; when a run was first heard of stays.
UPDATE auditord.records
SET position = DEFAULT, {overwritten}
FROM jsonb_to_recordset(%s::jsonb) AS changed ({record_types})
WHERE records.record_id = changed.record_id

-- name: move_records
-- Change when records started and stopped, and their wire texts with it.
UPDATE auditord.records
SET
    position = DEFAULT, start_time = moved.start_time, stop_time = moved.stop_time, runtime = moved.runtime,
    document = moved.document, updated_at = moved.received_at
FROM jsonb_to_recordset(%s::jsonb) AS moved (
    record_id text, start_time timestamptz, stop_time timestamptz, runtime bigint, document text, received_at timestamptz
)
WHERE records.record_id = moved.record_id

-- name: find_records
-- Records by id, as far as plans need them; the wire text only where the record may be changed. Released
-- ones have their releases, and no wire text.
SELECT
    records.record_id, (extract(EPOCH FROM start_time) * 1000000)::bigint,
    (extract(EPOCH FROM stop_time) * 1000000)::bigint, content,
    CASE WHEN whole OR stop_time IS NULL THEN document END, NULL::bigint
FROM jsonb_to_recordset(%(wanted)s::jsonb) AS wanted (record_id text, whole boolean)
INNER JOIN auditord.records ON records.record_id = wanted.record_id
UNION ALL
SELECT
    released.record_id, (extract(EPOCH FROM start_time) * 1000000)::bigint,
    (extract(EPOCH FROM stop_time) * 1000000)::bigint, content, NULL, release
FROM jsonb_to_recordset(%(wanted)s::jsonb) AS wanted (record_id text, whole boolean)
INNER JOIN auditord.released ON released.record_id = wanted.record_id

-- name: lock_records
-- The same, kept from being changed by others until the transaction ends; always in one order, so that nobody waits in a
-- circle.
SELECT
    record_id, (extract(EPOCH FROM start_time) * 1000000)::bigint, (extract(EPOCH FROM stop_time) * 1000000)::bigint,
    content, document
FROM auditord.records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
ORDER BY record_id
FOR UPDATE

-- name: get_documents
-- The wire texts of records; of released ones, their releases.
SELECT record_id, document, NULL::bigint
FROM auditord.records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
UNION ALL
SELECT record_id, NULL, release
FROM auditord.released
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: insert_source
-- Give a principal and its client a number, unless they have one.
INSERT INTO auditord.sources (principal, agent)
VALUES (%(principal)s, %(agent)s)
ON CONFLICT (principal, agent) DO NOTHING

-- name: find_source
-- The number of a principal and its client.
SELECT source_id
FROM auditord.sources
WHERE principal = %(principal)s AND agent = %(agent)s

-- name: note_differences
-- Keep records that differ from the stored ones; one that came before comes to the top.
INSERT INTO auditord.differences (record_id, content, seen_at, source_id, offered)
SELECT record_id, content, received_at, source_id, document
FROM jsonb_to_recordset(%s::jsonb) AS offered (
    record_id text, content bigint, received_at timestamptz, source_id integer, document text
)
ON CONFLICT (record_id, content) DO UPDATE
SET
    arrival = EXCLUDED.arrival, seen_at = EXCLUDED.seen_at, source_id = EXCLUDED.source_id,
    offered = EXCLUDED.offered

-- name: settle_differences
-- Forget the differences of records that have been overwritten.
DELETE FROM auditord.differences
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: list_differences
-- All differences, the newest first, with what is stored now (nothing if it is released).
SELECT
    differences.record_id, (extract(EPOCH FROM differences.seen_at) * 1000000)::bigint, nullif(sources.principal, ''),
    records.document, differences.offered
FROM auditord.differences
LEFT JOIN auditord.records ON records.record_id = differences.record_id
INNER JOIN auditord.sources ON sources.source_id = differences.source_id
ORDER BY differences.arrival DESC

-- name: list_differences_of
-- The same of one record.
SELECT
    differences.record_id, (extract(EPOCH FROM differences.seen_at) * 1000000)::bigint, nullif(sources.principal, ''),
    records.document, differences.offered
FROM auditord.differences
LEFT JOIN auditord.records ON records.record_id = differences.record_id
INNER JOIN auditord.sources ON sources.source_id = differences.source_id
WHERE differences.record_id = %(record_id)s
ORDER BY differences.arrival DESC

-- name: insert_score_set
-- Give a text of scores a number, unless it has one.
INSERT INTO auditord.score_sets (digest, scores)
VALUES (%(digest)s, %(scores)s::jsonb)
ON CONFLICT (digest) DO NOTHING

-- name: find_score_set
-- The number of a text of scores.
SELECT score_set
FROM auditord.score_sets
WHERE digest = %(digest)s

-- name: keep_versions
-- Keep records as they are before they are changed on purpose.
INSERT INTO auditord.versions (
    record_id, action, reason, changed_at, changed_by, received_at, updated_at, source_id, document
)
SELECT
    records.record_id, changed.action, changed.reason, changed.changed_at, changed.changed_by, records.received_at,
    records.updated_at, records.source_id, records.document
FROM jsonb_to_recordset(%s::jsonb) AS changed (
    record_id text, action text, reason text, changed_at timestamptz, changed_by integer
)
INNER JOIN auditord.records ON records.record_id = changed.record_id

-- name: redact_records
-- Change what the meta of records decides, and their wire texts.
UPDATE auditord.records
SET position = DEFAULT, {redacted}
FROM jsonb_to_recordset(%s::jsonb) AS changed ({record_types})
WHERE records.record_id = changed.record_id

-- name: versions_of_records
-- The wire texts of what records were.
SELECT number, document
FROM auditord.versions
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
FOR UPDATE

-- name: versions_with_text
-- The wire texts of former versions that hold a text.
SELECT number, document
FROM auditord.versions
WHERE strpos(document, %(text)s) > 0
FOR UPDATE

-- name: redact_version
-- Change the wire text of a former version.
UPDATE auditord.versions
SET document = %(document)s
WHERE number = %(number)s

-- name: differences_with_text
-- The wire texts of differences that hold a text.
SELECT record_id, content, offered
FROM auditord.differences
WHERE strpos(offered, %(text)s) > 0
FOR UPDATE

-- name: forget_difference
-- Forget a difference.
DELETE FROM auditord.differences
WHERE record_id = %(record_id)s AND content = %(content)s

-- name: find_deleted
-- Which records were deleted on purpose, and are not there again.
SELECT DISTINCT versions.record_id
FROM auditord.versions
WHERE
    versions.action = 'delete'
    AND versions.record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
    AND NOT EXISTS (SELECT 1 FROM auditord.records WHERE records.record_id = versions.record_id)
    AND NOT EXISTS (SELECT 1 FROM auditord.released WHERE released.record_id = versions.record_id)

-- name: delete_records
-- Delete records.
DELETE FROM auditord.records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: list_versions
-- What a record was before each change, the oldest first.
SELECT
    versions.number, versions.action, versions.reason, (extract(EPOCH FROM versions.changed_at) * 1000000)::bigint,
    nullif(changers.principal, ''), versions.document, (extract(EPOCH FROM versions.received_at) * 1000000)::bigint,
    (extract(EPOCH FROM versions.updated_at) * 1000000)::bigint, nullif(sources.principal, '')
FROM auditord.versions
INNER JOIN auditord.sources AS changers ON changers.source_id = versions.changed_by
INNER JOIN auditord.sources ON sources.source_id = versions.source_id
WHERE versions.record_id = %(record_id)s
ORDER BY versions.number

-- name: unfinished_copy
-- Which store is being copied here.
SELECT source
FROM auditord.unfinished_copy

-- name: prepare_sums
-- Let groups be found by hashing: without room for as many as there might be, all records would be sorted on disk.
SELECT
    set_config('enable_sort', 'on', false),
    set_config('enable_parallel_append', 'on', false),
    set_config(
        'work_mem', greatest(pg_size_bytes(current_setting('work_mem')), pg_size_bytes('64MB')) / 1024 || 'kB', false
    )

-- name: find_generation
-- How far a spool has come.
SELECT generation
FROM auditord.spools
WHERE spool_id = %(spool_id)s
FOR UPDATE

-- name: set_generation
-- Note how far a spool has come.
INSERT INTO auditord.spools (spool_id, generation)
VALUES (%(spool_id)s, %(generation)s)
ON CONFLICT (spool_id) DO UPDATE SET generation = excluded.generation

-- name: note_daemon
-- Note how a daemon fares.
INSERT INTO auditord.daemons (
    spool_id, host, process, version, state_dir, started_at, seen_at, ended, queued, oldest, quarantined
)
VALUES (
    %(spool_id)s, %(host)s, %(process)s, %(version)s, %(state_dir)s, %(started_at)s, clock_timestamp(), %(ended)s,
    %(queued)s, %(oldest)s, %(quarantined)s
)
ON CONFLICT (spool_id) DO UPDATE SET
    host = excluded.host, process = excluded.process, version = excluded.version, state_dir = excluded.state_dir,
    started_at = excluded.started_at, seen_at = excluded.seen_at, ended = excluded.ended, queued = excluded.queued,
    oldest = excluded.oldest, quarantined = excluded.quarantined

-- name: forget_daemons
-- Forget daemons of which nothing was heard for a month.
DELETE FROM auditord.daemons
WHERE seen_at < clock_timestamp() - interval '30 days'

-- name: list_daemons
-- The daemons, and the microseconds since each was heard of.
SELECT
    spool_id, host, process, version, state_dir, (extract(EPOCH FROM started_at) * 1000000)::bigint, ended, queued,
    (extract(EPOCH FROM oldest) * 1000000)::bigint, quarantined,
    greatest((extract(EPOCH FROM clock_timestamp() - seen_at) * 1000000)::bigint, 0)
FROM auditord.daemons
ORDER BY host, spool_id

-- name: position
-- The place in the write-ahead log that answers include, and the identifier that replicas share.
SELECT
    pg_is_in_recovery(),
    pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, '0/0'
    )::bigint,
    CASE
        WHEN has_function_privilege('pg_control_system()', 'EXECUTE')
            THEN (SELECT system_identifier FROM pg_control_system())
    END

-- name: probe
-- Write something, as every addition does.
UPDATE auditord.probe
SET written_at = now()

-- The statements that only PostgreSQL has. Many rows are passed as one parameter, a JSON array.
-- auditord/store/statements.py has the names in braces.

-- name: add_records
-- Add records, or fail as a whole if an id is not free. No id can be released after this statement has checked it:
-- hold_records and writers of records wait for each other before they read anything.
INSERT INTO auditord.records ({record_columns})
SELECT {record_columns}
FROM jsonb_to_recordset(%(records)s::jsonb) AS offered ({record_types})
WHERE (
    SELECT auditord.refuse_released(gone.record_id)
    FROM auditord.released AS gone
    WHERE gone.record_id = offered.record_id
) IS NULL

-- name: insert_records
-- Add the records whose ids are free. Check afterwards with find_released that no id is of a released record.
INSERT INTO auditord.records ({record_columns})
SELECT {record_columns}
FROM jsonb_to_recordset(%s::jsonb) AS offered ({record_types})
ON CONFLICT (record_id) DO NOTHING

-- name: copy_records
-- Add many records whose ids are free. Check afterwards with released_among that no id is of a released record.
COPY auditord.records ({record_columns})
FROM STDIN (FORMAT binary)

-- name: get_document
-- The same as get_documents of one record, in two thirds of the time.
SELECT record_id, document, NULL
FROM auditord.records
WHERE record_id = %(id)s
UNION ALL
SELECT record_id, NULL, release
FROM auditord.released
WHERE record_id = %(id)s

-- name: has_any_released
-- One row if any record is released.
SELECT 1
FROM auditord.released
LIMIT 1

-- name: released_among
-- Those of the records that are released.
SELECT record_id
FROM auditord.released
WHERE record_id = ANY (%(ids)b::text [])

-- name: overwrite_records
-- Overwrite stored records, except for the time when they were first received.
UPDATE auditord.records
SET position = DEFAULT, {overwritten}
FROM jsonb_to_recordset(%s::jsonb) AS changed ({record_types})
WHERE records.record_id = changed.record_id

-- name: move_records
-- Change the start and stop times of records, and their wire texts accordingly.
UPDATE auditord.records
SET
    position = DEFAULT, start_time = moved.start_time, stop_time = moved.stop_time, runtime = moved.runtime,
    document = moved.document, updated_at = moved.received_at
FROM jsonb_to_recordset(%s::jsonb) AS moved (
    record_id text, start_time timestamptz, stop_time timestamptz, runtime bigint, document text, received_at timestamptz
)
WHERE records.record_id = moved.record_id

-- name: insert_origin
-- Give a principal and agent a number, unless they have one.
INSERT INTO auditord.origins (principal, agent)
VALUES (%(principal)s, %(agent)s)
ON CONFLICT (principal, agent) DO NOTHING

-- name: find_origin
-- The number of a principal and agent.
SELECT origin_id
FROM auditord.origins
WHERE principal = %(principal)s AND agent = %(agent)s

-- name: note_differences
-- Save differences. One that is already known becomes the newest.
INSERT INTO auditord.differences (record_id, content, seen_at, origin_id, offered)
SELECT record_id, content, received_at, origin_id, document
FROM jsonb_to_recordset(%s::jsonb) AS offered (
    record_id text, content bigint, received_at timestamptz, origin_id integer, document text
)
ON CONFLICT (record_id, content) DO UPDATE
SET
    arrival = EXCLUDED.arrival, seen_at = EXCLUDED.seen_at, origin_id = EXCLUDED.origin_id,
    offered = EXCLUDED.offered

-- name: insert_score_set
-- Give a score set a number, unless it has one.
INSERT INTO auditord.score_sets (digest, scores)
VALUES (%(digest)s, %(scores)s::jsonb)
ON CONFLICT (digest) DO NOTHING

-- name: find_score_set
-- The number of a score set.
SELECT score_set
FROM auditord.score_sets
WHERE digest = %(digest)s

-- name: keep_versions
-- Save the current versions of records before a deliberate change.
INSERT INTO auditord.versions (
    record_id, action, reason, changed_at, changed_by, received_at, updated_at, origin_id, document
)
SELECT
    records.record_id, changed.action, changed.reason, changed.changed_at, changed.changed_by, records.received_at,
    records.updated_at, records.origin_id, records.document
FROM jsonb_to_recordset(%s::jsonb) AS changed (
    record_id text, action text, reason text, changed_at timestamptz, changed_by integer
)
INNER JOIN auditord.records ON records.record_id = changed.record_id

-- name: redact_records
-- Change the columns that depend on meta, and the wire texts.
UPDATE auditord.records
SET position = DEFAULT, {redacted}
FROM jsonb_to_recordset(%s::jsonb) AS changed ({record_types})
WHERE records.record_id = changed.record_id

-- name: prepare_sums
-- Allow enough memory to group by hashing. Else the planner might sort all records on disk.
SELECT
    set_config('enable_sort', 'on', false),
    set_config('enable_parallel_append', 'on', false),
    set_config(
        'work_mem', greatest(pg_size_bytes(current_setting('work_mem')), pg_size_bytes('64MB')) / 1024 || 'kB', false
    )

-- name: position
-- The position in the write-ahead log up to which answers are current, and the identifier of the cluster, which
-- replicas share.
SELECT
    pg_is_in_recovery(),
    pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, '0/0'
    )::bigint,
    (SELECT cluster FROM auditord.feed)

-- name: probe
-- Write something, like every addition.
UPDATE auditord.probe
SET written_at = now()

-- name: follow_cluster
-- Continue with higher positions in the cluster of a restored dump: another one, or an older copy of the dumped one.
SELECT auditord.follow_cluster()
FROM auditord.feed
WHERE
    cluster <> (SELECT system_identifier FROM pg_control_system())
    OR greatest((SELECT max(position) FROM auditord.consumers), (SELECT given FROM auditord.lake))
    >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + "offset"

-- name: end_of_slice
-- The end of a slice with about a number of records. Records of one transaction share a position.
SELECT
    coalesce(
        (
            SELECT position
            FROM auditord.records
            WHERE position > %(after)s AND position <= %(end)s
            ORDER BY position
            OFFSET greatest(%(limit)s - 1, 0)
            LIMIT 1
        ),
        %(end)s
    )

-- name: note_removals
-- Copy stored versions to the removals.
INSERT INTO auditord.removals (former, operation, changed_at, changed_by, {removed_columns})
SELECT position, removed.operation, removed.changed_at, removed.changed_by, {removed_columns}
FROM auditord.records
INNER JOIN jsonb_to_recordset(%s::jsonb) AS removed (
    record_id text, operation text, changed_at timestamptz, changed_by integer
) USING (record_id)

-- name: continue_positions
-- Do nothing: transactions determine the positions.
SELECT

-- name: touch_records
-- Give a record the position of the removal of its former version.
UPDATE auditord.records
SET position = DEFAULT
FROM jsonb_to_recordset(%s::jsonb) AS touched (record_id text)
WHERE records.record_id = touched.record_id

-- name: note_forwards
-- Let senders forward records that were just added, whoever sent them, by removals of versions that never existed.
INSERT INTO auditord.removals (
    position, former, record_id, start_time, stop_time, origin_id, operation, changed_at, changed_by
)
SELECT
    position, position, records.record_id, start_time, stop_time, origin_id, removed.operation, removed.changed_at,
    removed.changed_by
FROM jsonb_to_recordset(%s::jsonb) AS removed (
    record_id text, operation text, changed_at timestamptz, changed_by integer
)
INNER JOIN auditord.records ON records.record_id = removed.record_id

-- name: scrub_removals
-- Delete names in former versions that all counts and roll-ups have passed.
UPDATE auditord.removals
SET document = NULL, meta = NULL, user_name = NULL
WHERE position <= %(position)s AND document IS NOT NULL

-- name: drop_empty_cells
-- Delete cells without records.
DELETE FROM auditord.rollups
WHERE records = 0

-- name: rolled_records_of_users
-- The number of records of users in cells of months; no row while many records are not in the cells.
SELECT coalesce(sum(records), 0)::bigint
FROM auditord.rollups
WHERE
    level = 2
    AND user_name = ANY (ARRAY(SELECT jsonb_array_elements_text(%(users)s::jsonb)))
    AND period = ANY (ARRAY(SELECT month::integer FROM jsonb_array_elements_text(%(months)s::jsonb) AS month))
HAVING
    (SELECT filled_from = -719162 FROM auditord.rolled_keys WHERE number = 0)
    AND (
        SELECT count(*)
        FROM (
            SELECT
            FROM auditord.records
            WHERE position > (SELECT consumers.position FROM auditord.consumers WHERE name = 'rollup:0')
            LIMIT greatest(%(most)s, 0)
        ) AS waiting
    ) < %(most)s

-- name: see_one_moment
-- Let the transaction read one snapshot, taken by its next statement. Conflicts with other transactions raise an error.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: hold_records
-- Wait for transactions that write records, and block others until this one ends, so that no id is released while
-- records are added (see add_records). Lock the lake's row first, like transactions that recall records.
LOCK TABLE auditord.records IN SHARE ROW EXCLUSIVE MODE

-- name: put_released
-- Save the ids of released records.
INSERT INTO auditord.released (record_id, start_time, stop_time, content, release, position)
SELECT record_id, start_time, stop_time, content, release, position
FROM jsonb_to_recordset(%s::jsonb) AS gone (
    record_id text, start_time timestamptz, stop_time timestamptz, content bigint, release bigint, position bigint
)

-- name: put_recalled
-- Save released rows that do not count.
INSERT INTO auditord.recalled (record_id, release, stop_time)
SELECT record_id, release, 'epoch'::timestamptz + stop_time * INTERVAL '1 microsecond'
FROM jsonb_to_recordset(%s::jsonb) AS kept (record_id text, release bigint, stop_time bigint)
ON CONFLICT DO NOTHING

-- name: forget_recalled
-- Forget released rows that did not count, since the lake no longer has them.
DELETE FROM auditord.recalled
USING jsonb_to_recordset(%s::jsonb) AS gone (record_id text, release bigint)
WHERE recalled.record_id = gone.record_id AND recalled.release = gone.release

-- name: restore_records
-- Give recalled records their former positions, and the times of their last changes.
UPDATE auditord.records
SET position = restored.position, updated_at = restored.updated_at
FROM jsonb_to_recordset(%s::jsonb) AS restored (record_id text, position bigint, updated_at timestamptz)
WHERE records.record_id = restored.record_id

-- name: write_records
-- Add records with the time of their last change, for copies of stores.
COPY auditord.records ({record_columns}, updated_at)
FROM STDIN (FORMAT binary)

-- name: last_number
-- The last number that a column of a table has assigned.
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('auditord.' || %(table)s, %(column)s)::regclass), 0)

-- name: set_last_number
-- Let a table continue after a number.
SELECT setval(
    pg_get_serial_sequence('auditord.' || %(table)s, %(column)s), greatest(%(number)s::bigint, 1), %(number)s::bigint > 0
)

-- name: last_position
-- The highest position of a record.
SELECT coalesce(max(position), 0)
FROM auditord.records

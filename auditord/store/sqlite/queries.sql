-- The statements that only SQLite has. auditord/store/statements.py has the names in braces.

-- name: has_released
-- Whether one of the ids is of a released record. This is checked once for all records of an insertion, since a trigger
-- or a condition in the insertion would double the time per record.
SELECT EXISTS (SELECT 1 FROM released WHERE record_id {any ids})

-- name: overwrite_records
-- Overwrite a stored record, except for the time when it was first received.
UPDATE records
SET
    position = (SELECT max(position) FROM removals WHERE record_id = :record_id),
    {overwritten}
WHERE record_id = :record_id

-- name: move_records
-- Change the start and stop times of a record, and its wire text accordingly.
UPDATE records
SET
    position = (SELECT max(position) FROM removals WHERE record_id = ?1),
    start_time = ?2, stop_time = ?3, document = ?5, updated_at = ?6
WHERE record_id = ?1

-- name: find_origin
-- The number of a principal and agent.
SELECT origin_id
FROM origins
WHERE principal IS nullif(:principal, '') AND agent IS nullif(:agent, '')

-- name: insert_origin
-- Give a principal and agent a number.
INSERT INTO origins (principal, agent)
VALUES (nullif(:principal, ''), nullif(:agent, ''))

-- name: find_score_set
-- The number of a score set.
SELECT score_set
FROM score_sets
WHERE scores = :scores

-- name: insert_score_set
-- Give a score set a number.
INSERT INTO score_sets (scores)
VALUES (:scores)

-- name: note_differences
-- Save a difference. One that is already known becomes the newest.
INSERT OR REPLACE INTO differences (record_id, content, offered, seen_at, origin_id)
VALUES (:record_id, :content, :document, :received_at, :origin_id)

-- name: keep_versions
-- Save the current version of a record before a deliberate change.
INSERT INTO versions (
    record_id, action, reason, changed_at, changed_by, received_at, updated_at, origin_id, document
)
SELECT record_id, ?2, ?3, ?4, ?5, received_at, updated_at, origin_id, document
FROM records
WHERE record_id = ?1

-- name: redact_records
-- Change the columns that depend on meta, and the wire text.
UPDATE records
SET
    position = (SELECT max(position) FROM removals WHERE record_id = :record_id),
    {redacted}
WHERE record_id = :record_id

-- name: fill_probe
-- Write as much as a large record takes.
INSERT INTO probe (filling)
VALUES (zeroblob(32768))

-- name: empty_probe
-- Delete it again.
DELETE FROM probe

-- name: end_of_slice
-- The end of a slice with a number of positions, which begins at the first one that has a version.
SELECT min(:end, coalesce(min(first) + :limit - 1, :end))
FROM (
    SELECT min(position) AS first FROM records WHERE position > :after
    UNION ALL
    SELECT min(position) FROM removals WHERE position > :after
)

-- name: note_removals
-- Copy a stored version to the removals, at the next position.
INSERT INTO removals (position, former, operation, changed_at, changed_by, {removed_columns})
SELECT
    1 + max(
        (SELECT seq FROM sqlite_sequence WHERE name = 'records'), coalesce((SELECT max(position) FROM removals), 0)
    ),
    position, ?2, ?3, ?4, {removed_columns}
FROM records
WHERE record_id = ?1

-- name: continue_positions
-- Do not assign the positions of removals again.
UPDATE sqlite_sequence
SET seq = max(seq, (SELECT max(position) FROM removals))
WHERE name = 'records'

-- name: touch_records
-- Give a record the position of the removal of its former version.
UPDATE records
SET position = (SELECT max(position) FROM removals WHERE record_id = ?1)
WHERE record_id = ?1

-- name: note_forwards
-- Let senders forward a record that was just added, whoever sent it, by the removal of a version that never existed.
INSERT INTO removals (
    position, former, record_id, start_time, stop_time, origin_id, operation, changed_at, changed_by
)
SELECT position, position, record_id, start_time, stop_time, origin_id, ?2, ?3, ?4
FROM records
WHERE record_id = ?1

-- name: scrub_removals
-- Delete names in former versions that all counts and roll-ups have passed.
UPDATE removals
SET document = NULL, user_name = NULL
WHERE position <= :position AND document IS NOT NULL

-- name: drop_empty_cells
-- Delete cells without records.
DELETE FROM rollups
WHERE records = 0 AND left_out = 0

-- name: rolled_records_of_users
-- The number of records of users in cells of months; no row while many records are not in the cells.
SELECT coalesce(sum(records), 0)
FROM rollups
WHERE
    level = 2
    AND period IN (
        SELECT value
        FROM json_each(:months)
        WHERE
            value >= (SELECT min(period) FROM rollups WHERE level = 2)
            AND value <= (SELECT max(period) FROM rollups WHERE level = 2)
    )
    AND user_name IN (SELECT value FROM json_each(:users))
HAVING
    (SELECT filled_from = -719162 FROM rolled_keys WHERE number = 0)
    AND (
        SELECT seq - (SELECT position FROM consumers WHERE name = 'rollup:0') < :most
        FROM sqlite_sequence
        WHERE name = 'records'
    )

-- name: has_count
-- One row if records with one of the values under a key have been counted.
SELECT 1
FROM record_counts
WHERE meta_key = :key AND meta_value IN (SELECT value FROM json_each(:values)) AND records <> 0
LIMIT 1

-- name: see_one_moment
-- Do nothing: no other transaction writes at the same time.
SELECT 1

-- name: hold_records
-- Do nothing: no other transaction writes at the same time.
SELECT 1

-- name: put_released
-- Save the id of a released record.
INSERT INTO released (record_id, start_time, stop_time, content, release, position)
VALUES (?, ?, ?, ?, ?, ?)

-- name: put_recalled
-- Save a released row that does not count.
INSERT OR IGNORE INTO recalled (record_id, release, stop_time)
VALUES (?, ?, ?)

-- name: forget_recalled
-- Forget a released row that did not count, since the lake no longer has it.
DELETE FROM recalled
WHERE record_id = ?1 AND release = ?2 AND stop_time = ?3

-- name: restore_records
-- Give a recalled record its former position, and the time of its last change.
UPDATE records
SET position = ?2, updated_at = ?3
WHERE record_id = ?1

-- name: write_records
-- Add a record with the time of its last change, for copies of stores.
INSERT INTO records ({record_columns}, updated_at)
VALUES ({new_values}, :updated_at)

-- name: last_number
-- The last number that a table has assigned.
SELECT coalesce(max(seq), 0)
FROM sqlite_sequence
WHERE name = :table

-- name: set_last_number
-- Let a table continue after a number.
INSERT OR REPLACE INTO sqlite_sequence (rowid, name, seq)
VALUES ((SELECT rowid FROM sqlite_sequence WHERE name = :table), :table, :number)

-- name: last_position
-- The highest position that was assigned, or that a released record has, or the one after the last batch of the lake.
SELECT
    max(
        coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'records'), 0),
        coalesce((SELECT max(position) FROM released), 0),
        coalesce((SELECT given + 1 FROM lake WHERE given > 0), 0)
    )

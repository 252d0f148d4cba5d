-- The statements that maintain the roll-ups.

-- name: note_rollup_changes
-- Append what a transaction changed in the cells of a day.
INSERT INTO rollup_changes (day, size, changes, keys)
VALUES (?1, ?2, ?3, ?4)

-- name: rollup_state
-- The first day that is not in the cells yet, and the days whose changes are held.
SELECT filled_to, held_from, held_to, hold
FROM rollup_state

-- name: lock_rollups
-- The same; nobody else writes.
SELECT filled_to, held_from, held_to, hold
FROM rollup_state

-- name: set_rollup_state
-- The cells are complete up to a day.
UPDATE rollup_state
SET filled_to = :filled_to

-- name: hold_rollups
-- Let changes of some days wait, and of no others; the number tells this from any other time.
UPDATE rollup_state
SET held_from = :held_from, held_to = :held_to, hold = hold + 1

-- name: list_rolled_keys
-- The keys with cells of their own.
SELECT number, meta_key, filled_from
FROM rolled_keys
ORDER BY number

-- name: add_rolled_key
-- Let a key have some.
INSERT INTO rolled_keys (number, meta_key, filled_from)
VALUES (:number, :meta_key, :filled_from)

-- name: forget_rolled_key
-- Let it have none.
DELETE FROM rolled_keys
WHERE number = :number

-- name: set_filled_from
-- The cells of a key have all records from a day on.
UPDATE rolled_keys
SET filled_from = :filled_from
WHERE number = :number

-- name: forget_filled_keys
-- They are filled anew.
UPDATE rolled_keys
SET filled_from = 2932897

-- name: drop_levels
-- Delete the cells of some levels.
DELETE FROM rollups
WHERE level >= :first AND level < :behind

-- name: keys_of_rollup_changes
-- What changes of some days tell apart.
SELECT DISTINCT keys
FROM rollup_changes
WHERE day >= :begin AND day < :end

-- name: days_of_rollups
-- The first and the last day that have cells, of levels 1 and 5 (each is one look into the index), or changes of some.
SELECT min(day), max(day)
FROM (
    SELECT min(period) AS day FROM rollups WHERE level = 1
    UNION ALL
    SELECT max(period) FROM rollups WHERE level = 1
    UNION ALL
    SELECT min(period) FROM rollups WHERE level = 5
    UNION ALL
    SELECT max(period) FROM rollups WHERE level = 5
    UNION ALL
    SELECT min(day) FROM rollup_changes
    UNION ALL
    SELECT max(day) FROM rollup_changes
) AS ends

-- name: rolled_records_of_users
-- How many records of users are in cells of years; nothing before all are.
SELECT coalesce(sum(records), 0)
FROM rollups
WHERE
    level IN (10, 14) AND component = ''
    AND period IN (
        SELECT value
        FROM json_each(:years)
        WHERE
            value >= min(
                coalesce((SELECT min(period) FROM rollups WHERE level = 10), 2932897),
                coalesce((SELECT min(period) FROM rollups WHERE level = 14), 2932897)
            )
            AND value <= max(
                coalesce((SELECT max(period) FROM rollups WHERE level = 10), 0),
                coalesce((SELECT max(period) FROM rollups WHERE level = 14), 0)
            )
    )
    AND labels IN (SELECT number FROM rollup_labels WHERE user_name IN (SELECT value FROM json_each(:users)))
HAVING (SELECT filled_to = 2932897 FROM rollup_state)

-- name: size_of_rollup_changes
-- How many changes of cells wait.
SELECT coalesce(sum(size), 0)
FROM rollup_changes

-- name: list_rollup_changes
-- The oldest changes behind one, of days that are in the cells, about so many cells of them.
SELECT number, day, changes, keys
FROM rollup_changes
WHERE
    number > :after AND day < :filled_to AND NOT (day >= :held_from AND day < :held_to)
    AND number <= (
        SELECT max(number)
        FROM (
            SELECT number, size, sum(size) OVER (ORDER BY number) AS so_far
            FROM rollup_changes
            WHERE number > :after AND day < :filled_to AND NOT (day >= :held_from AND day < :held_to)
        )
        WHERE so_far - size < :most
    )
ORDER BY number

-- name: count_rollup_changes
-- How many of some changes nobody has folded yet.
SELECT count(*)
FROM rollup_changes
WHERE number IN (SELECT value FROM json_each(:numbers))

-- name: forget_rollup_changes
-- Drop changes that are in the cells.
DELETE FROM rollup_changes
WHERE number IN (SELECT value FROM json_each(:numbers))

-- name: add_rollup_labels
-- Give labels a number, unless they have one.
INSERT INTO rollup_labels (digest, site, user_group, user_name, document)
VALUES (?1, ?2, ?3, ?4, '{"meta":' || ?5 || '}')
ON CONFLICT (digest) DO NOTHING

-- name: find_rollup_labels
-- The numbers of labels.
SELECT digest, number
FROM rollup_labels
WHERE digest IN (SELECT value FROM json_each(:digests))

-- name: count_rollup_labels
-- How many of some labels there are.
SELECT count(*)
FROM rollup_labels
WHERE number IN (SELECT value FROM json_each(:numbers))

-- name: has_unused_rollup_labels
-- Whether some labels are in no cell.
SELECT EXISTS (SELECT 1 FROM rollup_labels WHERE number NOT IN (SELECT labels FROM rollups))

-- name: drop_unused_rollup_labels
-- Delete labels that no cell has.
DELETE FROM rollup_labels
WHERE number NOT IN (SELECT labels FROM rollups)

-- name: add_to_rollups
-- Change cells.
INSERT INTO rollups (
    level, period, labels, score_set, component, records, amount, runtime_high, runtime_low, first_stop, last_stop,
    gone_first, gone_last, left_out
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
ON CONFLICT (level, period, labels, score_set, component) DO UPDATE
SET
    records = records + excluded.records,
    amount = amount + excluded.amount,
    runtime_high = runtime_high + excluded.runtime_high,
    runtime_low = runtime_low + excluded.runtime_low,
    first_stop = coalesce(min(first_stop, excluded.first_stop), first_stop, excluded.first_stop),
    last_stop = coalesce(max(last_stop, excluded.last_stop), last_stop, excluded.last_stop),
    gone_first = coalesce(min(gone_first, excluded.gone_first), gone_first, excluded.gone_first),
    gone_last = coalesce(max(gone_last, excluded.gone_last), gone_last, excluded.gone_last),
    left_out = left_out + excluded.left_out

-- name: drop_empty_rollups
-- Delete a cell that no record is in any more.
DELETE FROM rollups
WHERE
    level = ?1 AND period = ?2 AND labels = ?3 AND score_set = ?4 AND component = ?5 AND records = 0 AND left_out = 0

-- name: next_rollup_stop
-- The first stop time of a day or later.
SELECT min(stop_time)
FROM records
WHERE stop_time >= :day * 86400000000

-- name: previous_rollup_stop
-- The last stop time before a day.
SELECT max(stop_time)
FROM records
WHERE stop_time < :day * 86400000000

-- name: read_rollup_days
-- All records of some days with complete columns, and the changes of these days, from one state.
SELECT number, day, NULL, keys, NULL, NULL, NULL, changes
FROM rollup_changes
WHERE day >= :begin AND day < :end
UNION ALL
SELECT NULL, start_time, stop_time, site, user_group, user_name, score_set, document
FROM records
WHERE
    stop_time >= :begin * 86400000000 AND stop_time < :end * 86400000000 AND more IS NULL AND stop_time >= start_time

-- name: forget_rollups
-- The roll-ups are filled anew.
DELETE FROM rollups

-- name: forget_all_rollup_changes
-- The same.
DELETE FROM rollup_changes

-- name: forget_rollup_state
-- The same.
UPDATE rollup_state
SET filled_to = -719162, held_from = 0, held_to = 0, hold = hold + 1

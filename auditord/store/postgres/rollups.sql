-- The statements that maintain the roll-ups.

-- name: note_rollup_changes
-- Append what a transaction changed in the cells of days.
INSERT INTO auditord.rollup_changes (day, size, changes, keys)
SELECT day, size, changes, keys
FROM jsonb_to_recordset(%s::jsonb) AS noted (day integer, size integer, changes text, keys text)

-- name: rollup_state
-- The first day that is not in the cells yet, and the days whose changes are held.
SELECT filled_to, held_from, held_to, hold
FROM auditord.rollup_state

-- name: lock_rollups
-- The same; others who change cells wait until the transaction ends.
SELECT filled_to, held_from, held_to, hold
FROM auditord.rollup_state
FOR UPDATE

-- name: set_rollup_state
-- The cells are complete up to a day.
UPDATE auditord.rollup_state
SET filled_to = %(filled_to)s

-- name: hold_rollups
-- Let changes of some days wait, and of no others; the number tells this from any other time.
UPDATE auditord.rollup_state
SET held_from = %(held_from)s, held_to = %(held_to)s, hold = hold + 1

-- name: list_rolled_keys
-- The keys with cells of their own.
SELECT number, meta_key, filled_from
FROM auditord.rolled_keys
ORDER BY number

-- name: add_rolled_key
-- Let a key have some.
INSERT INTO auditord.rolled_keys (number, meta_key, filled_from)
VALUES (%(number)s, %(meta_key)s, %(filled_from)s)

-- name: forget_rolled_key
-- Let it have none.
DELETE FROM auditord.rolled_keys
WHERE number = %(number)s

-- name: set_filled_from
-- The cells of a key have all records from a day on.
UPDATE auditord.rolled_keys
SET filled_from = %(filled_from)s
WHERE number = %(number)s

-- name: forget_filled_keys
-- They are filled anew.
UPDATE auditord.rolled_keys
SET filled_from = 2932897

-- name: drop_levels
-- Delete the cells of some levels.
DELETE FROM auditord.rollups
WHERE level >= %(first)s AND level < %(behind)s

-- name: keys_of_rollup_changes
-- What changes of some days tell apart.
SELECT DISTINCT keys
FROM auditord.rollup_changes
WHERE day >= %(begin)s AND day < %(end)s

-- name: days_of_rollups
-- The first and the last day that have cells, of levels 1 and 5 (each is one look into the index), or changes of some.
SELECT min(day), max(day)
FROM (
    SELECT min(period) AS day FROM auditord.rollups WHERE level = 1
    UNION ALL
    SELECT max(period) FROM auditord.rollups WHERE level = 1
    UNION ALL
    SELECT min(period) FROM auditord.rollups WHERE level = 5
    UNION ALL
    SELECT max(period) FROM auditord.rollups WHERE level = 5
    UNION ALL
    SELECT min(day) FROM auditord.rollup_changes
    UNION ALL
    SELECT max(day) FROM auditord.rollup_changes
) AS ends

-- name: rolled_records_of_users
-- How many records of users are in cells of years; nothing before all are.
SELECT coalesce(sum(records), 0)::bigint
FROM auditord.rollups
WHERE
    level IN (10, 14) AND component = ''
    AND period = ANY (
        ARRAY(
            SELECT year::integer
            FROM jsonb_array_elements_text(%(years)s::jsonb) AS year
            INNER JOIN (
                SELECT
                    least(
                        (SELECT min(period) FROM auditord.rollups WHERE level = 10),
                        (SELECT min(period) FROM auditord.rollups WHERE level = 14)
                    ) AS first_year,
                    greatest(
                        (SELECT max(period) FROM auditord.rollups WHERE level = 10),
                        (SELECT max(period) FROM auditord.rollups WHERE level = 14)
                    ) AS last_year
            ) AS ends ON year::integer >= first_year AND year::integer <= last_year
        )
    )
    AND labels = ANY (
        ARRAY(
            SELECT number
            FROM auditord.rollup_labels
            WHERE user_name = ANY (ARRAY(SELECT jsonb_array_elements_text(%(users)s::jsonb)))
        )
    )
HAVING (SELECT filled_to = 2932897 FROM auditord.rollup_state)

-- name: size_of_rollup_changes
-- How many changes of cells wait.
SELECT coalesce(sum(size), 0)
FROM auditord.rollup_changes

-- name: list_rollup_changes
-- The oldest changes behind one, of days that are in the cells, about so many cells of them.
SELECT number, day, changes, keys
FROM (
    SELECT number, day, size, changes, keys, sum(size) OVER (ORDER BY number) AS so_far
    FROM auditord.rollup_changes
    WHERE number > %(after)s AND day < %(filled_to)s AND NOT (day >= %(held_from)s AND day < %(held_to)s)
) AS waiting
WHERE so_far - size < %(most)s
ORDER BY number

-- name: count_rollup_changes
-- How many of some changes nobody has folded yet.
SELECT count(*)
FROM auditord.rollup_changes
WHERE number = ANY (ARRAY(SELECT jsonb_array_elements_text(%(numbers)s::jsonb)::bigint))

-- name: forget_rollup_changes
-- Drop changes that are in the cells.
DELETE FROM auditord.rollup_changes
WHERE number = ANY (ARRAY(SELECT jsonb_array_elements_text(%(numbers)s::jsonb)::bigint))

-- name: add_rollup_labels
-- Give labels a number, unless they have one.
INSERT INTO auditord.rollup_labels (digest, site, user_group, user_name, meta)
SELECT digest, site, user_group, user_name, meta::jsonb
FROM jsonb_to_recordset(%s::jsonb) AS found (digest text, site text, user_group text, user_name text, meta text)
ON CONFLICT (digest) DO NOTHING

-- name: find_rollup_labels
-- The numbers of labels.
SELECT digest, number
FROM auditord.rollup_labels
WHERE digest = ANY (ARRAY(SELECT jsonb_array_elements_text(%(digests)s::jsonb)))

-- name: count_rollup_labels
-- How many of some labels there are.
SELECT count(*)
FROM auditord.rollup_labels
WHERE number = ANY (ARRAY(SELECT jsonb_array_elements_text(%(numbers)s::jsonb)::integer))

-- name: has_unused_rollup_labels
-- Whether some labels are in no cell.
SELECT EXISTS (
    SELECT FROM auditord.rollup_labels
    WHERE NOT EXISTS (SELECT FROM auditord.rollups WHERE rollups.labels = rollup_labels.number)
)

-- name: drop_unused_rollup_labels
-- Delete labels that no cell has.
DELETE FROM auditord.rollup_labels
WHERE NOT EXISTS (SELECT FROM auditord.rollups WHERE rollups.labels = rollup_labels.number)

-- name: add_to_rollups
-- Change cells; of each column an array, of components the places in one of names.
INSERT INTO auditord.rollups (
    level, period, labels, score_set, component, records, amount, runtime_high, runtime_low, first_stop, last_stop,
    gone_first, gone_last, left_out
)
SELECT
    level, period, labels, score_set, (%(names)s::text [])[component], records, amount, runtime_high, runtime_low,
    first_stop, last_stop, gone_first, gone_last, left_out
FROM unnest(
    %(level)s::smallint [], %(period)s::integer [], %(labels)s::integer [], %(score_set)s::integer [],
    %(component)s::integer [], %(records)s::bigint [], %(amount)s::bigint [], %(runtime_high)s::bigint [],
    %(runtime_low)s::bigint [], %(first_stop)s::bigint [], %(last_stop)s::bigint [], %(gone_first)s::bigint [],
    %(gone_last)s::bigint [], %(left_out)s::bigint []
) AS more (
    level, period, labels, score_set, component, records, amount, runtime_high, runtime_low, first_stop, last_stop,
    gone_first, gone_last, left_out
)
ON CONFLICT (level, period, labels, score_set, component) DO UPDATE
SET
    records = rollups.records + EXCLUDED.records,
    amount = rollups.amount + EXCLUDED.amount,
    runtime_high = rollups.runtime_high + EXCLUDED.runtime_high,
    runtime_low = rollups.runtime_low + EXCLUDED.runtime_low,
    first_stop = least(rollups.first_stop, EXCLUDED.first_stop),
    last_stop = greatest(rollups.last_stop, EXCLUDED.last_stop),
    gone_first = least(rollups.gone_first, EXCLUDED.gone_first),
    gone_last = greatest(rollups.gone_last, EXCLUDED.gone_last),
    left_out = rollups.left_out + EXCLUDED.left_out

-- name: drop_empty_rollups
-- Delete those of the cells that no record is in any more.
DELETE FROM auditord.rollups
USING jsonb_to_recordset(%s::jsonb) AS maybe (
    level smallint, period integer, labels integer, score_set integer, component text
)
WHERE
    rollups.level = maybe.level AND rollups.period = maybe.period AND rollups.labels = maybe.labels
    AND rollups.score_set = maybe.score_set AND rollups.component = maybe.component
    AND rollups.records = 0 AND rollups.left_out = 0

-- name: next_rollup_stop
-- The first stop time of a day or later.
SELECT (extract(EPOCH FROM min(stop_time)) * 1000000)::bigint
FROM auditord.records
WHERE stop_time >= to_timestamp(%(day)s::double precision * 86400)

-- name: previous_rollup_stop
-- The last stop time before a day.
SELECT (extract(EPOCH FROM max(stop_time)) * 1000000)::bigint
FROM auditord.records
WHERE stop_time < to_timestamp(%(day)s::double precision * 86400)

-- name: read_rollup_days
-- All records of some days with complete columns, and the changes of these days, from one state.
SELECT
    number, day::bigint, NULL::bigint, keys, NULL::text, NULL::text, NULL::integer, changes
FROM auditord.rollup_changes
WHERE day >= %(begin)s AND day < %(end)s
UNION ALL
SELECT
    NULL::bigint, (extract(EPOCH FROM start_time) * 1000000)::bigint, (extract(EPOCH FROM stop_time) * 1000000)::bigint,
    site, user_group, user_name, score_set, document
FROM auditord.records
WHERE
    stop_time >= to_timestamp(%(begin)s::double precision * 86400)
    AND stop_time < to_timestamp(%(end)s::double precision * 86400)
    AND more IS NOT TRUE AND stop_time >= start_time

-- name: forget_rollups
-- The roll-ups are filled anew.
DELETE FROM auditord.rollups

-- name: forget_all_rollup_changes
-- The same.
DELETE FROM auditord.rollup_changes

-- name: forget_rollup_state
-- The same.
UPDATE auditord.rollup_state
SET filled_to = -719162, held_from = 0, held_to = 0, hold = hold + 1

-- Cells of years, and cells that tell the values of further keys apart.

-- The keys with cells of their own, of all users together: as levels, these have 32 times the number added.
CREATE TABLE auditord.rolled_keys (
    number integer PRIMARY KEY,
    filled_from integer NOT NULL, -- the first day that is in the cells, 2932897 for none
    meta_key text COLLATE "C" NOT NULL UNIQUE -- '' stands for the number of cores
);

ALTER TABLE auditord.rollup_changes ADD COLUMN keys text NOT NULL DEFAULT '[]'; -- those that are told apart, a JSON list

-- Days whose changes wait until cells of a key are filled, and a number that tells that from any other time.
ALTER TABLE auditord.rollup_state
    ADD COLUMN held_from integer NOT NULL DEFAULT 0,
    ADD COLUMN held_to integer NOT NULL DEFAULT 0,
    ADD COLUMN hold bigint NOT NULL DEFAULT 0;

-- Levels 10 and 11 are years as 2 and 3 are months, 14 and 15 as 6 and 7.
INSERT INTO auditord.rollups (
    level, period, labels, score_set, component, records, amount, runtime_high, runtime_low, first_stop, last_stop,
    gone_first, gone_last, left_out
)
SELECT
    level + 8,
    (
        extract(EPOCH FROM date_trunc('year', to_timestamp(period::double precision * 86400) AT TIME ZONE 'UTC')) / 86400
    )::integer AS first_day,
    labels, score_set, component, sum(records), sum(amount), sum(runtime_high), sum(runtime_low),
    min(first_stop), max(last_stop), min(gone_first), max(gone_last), sum(left_out)
FROM auditord.rollups
WHERE level IN (2, 3, 6, 7)
GROUP BY level, first_day, labels, score_set, component;

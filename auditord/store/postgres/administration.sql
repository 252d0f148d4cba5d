-- Statements of `auditord database status` and `auditord doctor`.

-- name: list_relations
-- Tables and indexes with their sizes in bytes, largest first.
SELECT pg_class.relname, pg_table_size(pg_class.oid)
FROM pg_class
INNER JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
WHERE pg_namespace.nspname = 'auditord' AND pg_class.relkind IN ('r', 'i')
ORDER BY pg_table_size(pg_class.oid) DESC, pg_class.relname

-- name: read_clock
-- The server's clock.
SELECT clock_timestamp()

-- name: count_records
-- The number of records: the maintained count, plus the changes that it does not include yet.
SELECT
    coalesce((SELECT records FROM auditord.record_counts WHERE meta_key = ''), 0)
    + (
        SELECT count(*)
        FROM auditord.records
        WHERE position > (SELECT consumers.position FROM auditord.consumers WHERE name = 'count:')
    )
    - (
        SELECT count(*)
        FROM auditord.removals
        WHERE
            position > (SELECT consumers.position FROM auditord.consumers WHERE name = 'count:')
            AND former <= (SELECT consumers.position FROM auditord.consumers WHERE name = 'count:')
    )

-- name: oldest_writer
-- The oldest writing transaction, if it is older than a minute.
SELECT described
FROM (
    SELECT
        format(
            'session %s of %s (%s) in the database %s, %s', pid, usename, application_name, datname,
            date_trunc('second', now() - xact_start)
        ) AS described,
        xact_start AS since
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL
    UNION ALL
    SELECT
        format(
            'the prepared transaction %s of %s in the database %s, %s', gid, owner, database,
            date_trunc('second', now() - prepared)
        ),
        prepared
    FROM pg_prepared_xacts
) AS writers
WHERE since < now() - interval '1 minute'
ORDER BY since
LIMIT 1

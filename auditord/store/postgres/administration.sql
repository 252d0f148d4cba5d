-- What `auditord database status` asks.

-- name: list_relations
-- Tables and indexes with their bytes on the disk, the largest first.
SELECT pg_class.relname, pg_table_size(pg_class.oid)
FROM pg_class
INNER JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
WHERE pg_namespace.nspname = 'auditord' AND pg_class.relkind IN ('r', 'i')
ORDER BY pg_table_size(pg_class.oid) DESC, pg_class.relname

-- name: read_clock
-- The server's clock at this very moment.
SELECT clock_timestamp()

-- name: count_records
-- How many records there are, from the maintained counts.
SELECT
    (SELECT coalesce(sum(records), 0)::bigint FROM auditord.record_counts WHERE meta_key = '')
    + (SELECT coalesce(sum((changes #>> '{"",""}')::bigint), 0)::bigint FROM auditord.count_changes)

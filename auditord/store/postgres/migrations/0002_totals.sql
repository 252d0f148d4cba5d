-- The totals CoreSeconds, MemorySeconds and GPUSeconds, which a record has instead of Cores, Memory and GPU. In cells,
-- they are part of the sums of amount times runtime.
ALTER TABLE auditord.records
    ADD COLUMN core_seconds bigint, ADD COLUMN memory_seconds bigint, ADD COLUMN gpu_seconds bigint;
ALTER TABLE auditord.removals
    ADD COLUMN core_seconds bigint, ADD COLUMN memory_seconds bigint, ADD COLUMN gpu_seconds bigint;
-- Tells whether there are such records: sums read these columns only then.
CREATE INDEX records_with_totals ON auditord.records (stop_time)
WHERE core_seconds IS NOT NULL OR memory_seconds IS NOT NULL OR gpu_seconds IS NOT NULL;

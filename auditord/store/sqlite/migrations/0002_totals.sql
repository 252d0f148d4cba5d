-- The totals CoreSeconds, MemorySeconds and GPUSeconds, which a record has instead of Cores, Memory and GPU. In cells,
-- they are part of the sums of amount times runtime.
ALTER TABLE records ADD COLUMN core_seconds INTEGER;
ALTER TABLE records ADD COLUMN memory_seconds INTEGER;
ALTER TABLE records ADD COLUMN gpu_seconds INTEGER;
ALTER TABLE removals ADD COLUMN core_seconds INTEGER;
ALTER TABLE removals ADD COLUMN memory_seconds INTEGER;
ALTER TABLE removals ADD COLUMN gpu_seconds INTEGER;
DROP INDEX records_by_stop;
CREATE INDEX records_by_stop ON records (
    stop_time, record_id, start_time, site, user_group, user_name, more, cores, memory, gpu, total_cpu, core_seconds,
    memory_seconds, gpu_seconds, score_set
);
-- Tells whether there are such records: sums read these columns only then.
CREATE INDEX records_with_totals ON records (stop_time)
WHERE core_seconds IS NOT NULL OR memory_seconds IS NOT NULL OR gpu_seconds IS NOT NULL;

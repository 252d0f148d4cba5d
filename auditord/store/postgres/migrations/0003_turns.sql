-- Which process may run a plugin, and when one last has. All times are the server's.
CREATE TABLE auditord.turns (
    task text COLLATE "C" PRIMARY KEY,  -- the plugin's name in the configuration
    fencing bigint NOT NULL DEFAULT 0,  -- grows with each holder: whoever has a lower number writes nothing any more
    host text COLLATE "C",              -- of the holder; null while nobody has the turn
    process integer,                    -- its process id there
    since timestamptz,                  -- when it got the turn
    expires_at timestamptz,             -- the holder renews this lease; after it anybody may take over
    last_run timestamptz,               -- when the last run that went well began
    last_tick timestamptz,              -- the latest instant of a cron line for which there was a run
    last_daemon text COLLATE "C"        -- the spool id of the daemon of the last run
);

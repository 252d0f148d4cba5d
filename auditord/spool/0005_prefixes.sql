-- The record_prefix of each collector's last run, and the start of the first run with it; NULL: it never had another.
CREATE TABLE prefix (
    task   TEXT PRIMARY KEY,
    prefix TEXT NOT NULL,
    since  INTEGER
);

-- Who this spool is to the record store, and how far the two have come together: the store keeps the same number.
CREATE TABLE generation (
    spool_id TEXT    NOT NULL,
    number   INTEGER NOT NULL -- grows with every delivery, every start and stop; 0: not together with any store yet
);
INSERT INTO generation VALUES (lower(hex(randomblob(16))), 0);

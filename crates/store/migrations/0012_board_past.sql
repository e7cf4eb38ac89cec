-- Versions of deleted keys go on where they ended. One row for each bucket of keys in which one was
-- ever deleted: the highest version that a deleted key of it had. Of the colony's keys, not of one,
-- so that the table does not grow with all keys that ever were.
CREATE TABLE board_past (
  colony BLOB NOT NULL,
  bucket INTEGER NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (colony, bucket)
) STRICT, WITHOUT ROWID;

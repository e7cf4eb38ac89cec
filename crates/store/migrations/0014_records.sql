-- Records: declared things of every kind. `changed` is the global number of the event of the last
-- write; `wake` is the earlier of `due` and `expires_at`. `terms` are what the kind computed, as
-- pairs of name and value.
CREATE TABLE records (
  n INTEGER NOT NULL PRIMARY KEY,
  id BLOB NOT NULL,
  kind TEXT NOT NULL,
  colony BLOB NOT NULL,
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  owner BLOB,
  owner_is_session INTEGER NOT NULL,
  wake INTEGER,
  due INTEGER,
  expires_at INTEGER,
  deleting INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  written_by TEXT NOT NULL,
  finalizers TEXT NOT NULL,
  terms TEXT NOT NULL,
  labels TEXT NOT NULL,
  annotations TEXT NOT NULL,
  status TEXT NOT NULL,
  spec TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX records_by_id ON records (id);
CREATE UNIQUE INDEX records_by_key ON records (kind, colony, name);
CREATE UNIQUE INDEX records_by_change ON records (changed, kind, colony);
CREATE INDEX records_by_owner ON records (owner) WHERE owner IS NOT NULL;
CREATE INDEX records_by_wake ON records (wake, id) WHERE wake IS NOT NULL;

-- Labels by their keys, and the terms of kinds by `:name`, which no label key is.
CREATE TABLE record_terms (
  kind TEXT NOT NULL,
  term TEXT NOT NULL,
  value TEXT NOT NULL,
  id BLOB NOT NULL,
  PRIMARY KEY (kind, term, value, id)
) STRICT, WITHOUT ROWID;

-- The newest records that were deleted. `n` has no gaps.
CREATE TABLE record_tombs (
  n INTEGER NOT NULL PRIMARY KEY,
  id BLOB NOT NULL,
  kind TEXT NOT NULL,
  colony BLOB NOT NULL,
  name TEXT NOT NULL,
  at INTEGER NOT NULL,
  changed INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX record_tombs_by_change ON record_tombs (changed, kind, colony);

-- Deletions up to this number are not all known any more.
CREATE TABLE record_horizon (changed INTEGER NOT NULL) STRICT;
INSERT INTO record_horizon VALUES (0);

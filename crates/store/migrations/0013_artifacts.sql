-- Artifacts of sessions: the newest version of each name. The bytes lie in files beside the
-- database, by `session` and `file`; a file that no row names is swept away. `folded` is the name
-- without its case: two names that differ in nothing else are not both there. `place` is the order in
-- which they were saved.
CREATE TABLE artifacts (
  session BLOB NOT NULL,
  name TEXT NOT NULL,
  folded TEXT NOT NULL,
  colony BLOB NOT NULL,
  version INTEGER NOT NULL,
  file BLOB NOT NULL,
  bytes INTEGER NOT NULL,
  media_type TEXT NOT NULL,
  hash BLOB NOT NULL,
  is_text INTEGER NOT NULL,
  is_masked INTEGER NOT NULL,
  author TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  place INTEGER NOT NULL,
  PRIMARY KEY (session, name)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX artifacts_by_folded ON artifacts (session, folded);
CREATE UNIQUE INDEX artifacts_by_file ON artifacts (session, file);
CREATE INDEX artifacts_by_place ON artifacts (session, place);

-- What sandboxes were measured to give: each record once, under its digest; a session keeps the
-- gist of the one that its commands ran in.

CREATE TABLE attestations (
  digest TEXT NOT NULL PRIMARY KEY,
  at INTEGER NOT NULL,
  record TEXT NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE sessions ADD COLUMN attestation TEXT;

-- Memory: where an item came from, when it ends, what it replaced; vectors that an index in
-- memory can follow; how many items there are.

ALTER TABLE memory_items ADD COLUMN expires_at INTEGER;
ALTER TABLE memory_items ADD COLUMN supersedes BLOB;
ALTER TABLE memory_items ADD COLUMN superseded_by BLOB;
ALTER TABLE memory_items ADD COLUMN author TEXT NOT NULL DEFAULT '';
ALTER TABLE memory_items ADD COLUMN trust TEXT NOT NULL DEFAULT 'untrusted';
ALTER TABLE memory_items ADD COLUMN source_event TEXT;

-- What a session stored was written by its model; the rest came through the API.
UPDATE memory_items SET trust = CASE WHEN source IS NULL THEN 'user' ELSE 'agent' END;

CREATE INDEX memory_by_expiry ON memory_items (expires_at) WHERE expires_at IS NOT NULL;

ALTER TABLE collections ADD COLUMN items INTEGER NOT NULL DEFAULT 0;
UPDATE collections SET items =
  (SELECT count(*) FROM memory_items WHERE memory_items.collection = collections.n);

-- Every vector carries the number of the change that wrote it, and a vector that goes leaves
-- its number behind, so that whoever read the vectors up to some number can read on from there.
ALTER TABLE memory_vectors ADD COLUMN rev INTEGER NOT NULL DEFAULT 0;
DROP INDEX memory_vectors_by_collection;
CREATE INDEX memory_vectors_by_rev ON memory_vectors (collection, model, dims, rev);

CREATE TABLE memory_vectors_gone (
  rev INTEGER NOT NULL PRIMARY KEY,
  item INTEGER NOT NULL
) STRICT;

-- One row. `rev` is the last number given; what went at `floor` or before is forgotten; `items`
-- counts all items.
CREATE TABLE memory_state (
  rev INTEGER NOT NULL,
  floor INTEGER NOT NULL,
  items INTEGER NOT NULL
) STRICT;
INSERT INTO memory_state SELECT 0, 0, count(*) FROM memory_items;

-- How many items hold a word, read off the index.
CREATE VIRTUAL TABLE memory_vocab USING fts5vocab (memory_words, 'row');

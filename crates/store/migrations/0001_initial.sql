-- Ids are 16-byte blobs, big-endian, so that comparing them compares the time they were minted.
-- Times are microseconds since 1970. Every resource names its colony, every session its hive.

PRAGMA application_id = 0x4f564d44; -- "OVMD"

CREATE TABLE colonies (
  id BLOB NOT NULL PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO colonies VALUES (x'00000000000070008000000000000001', 'default', 0);

CREATE TABLE hives (
  id BLOB NOT NULL PRIMARY KEY,
  name TEXT NOT NULL,
  seen_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO hives VALUES (x'00000000000070008000000000000001', 'local', 0);

-- The log. `streams.name` is a session's id, or empty for the system stream. Events name their
-- stream by its small number: it stands in every row and in the index.
CREATE TABLE streams (
  n INTEGER NOT NULL PRIMARY KEY,
  name BLOB NOT NULL UNIQUE,
  head_seq INTEGER NOT NULL,
  head_hash BLOB NOT NULL
) STRICT;
INSERT INTO streams VALUES (1, x'', 0, zeroblob(32));

CREATE TABLE events (
  global INTEGER NOT NULL PRIMARY KEY,
  stream INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  ts INTEGER NOT NULL,
  hash BLOB NOT NULL,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_stream ON events (stream, seq);

-- `prev` is the digest of the checkpoint before; `digest` is over this row and its heads.
CREATE TABLE checkpoints (
  number INTEGER NOT NULL PRIMARY KEY,
  ts INTEGER NOT NULL,
  global INTEGER NOT NULL,
  heads INTEGER NOT NULL,
  prev BLOB NOT NULL,
  digest BLOB NOT NULL,
  key BLOB NOT NULL,
  signature BLOB NOT NULL
) STRICT;
CREATE TABLE checkpoint_heads (
  checkpoint INTEGER NOT NULL,
  stream BLOB NOT NULL,
  seq INTEGER NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY (checkpoint, stream)
) STRICT, WITHOUT ROWID;

-- What retention removed in all, so that the number of events is known without counting them.
CREATE TABLE retention (
  one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
  events INTEGER NOT NULL
) STRICT;
INSERT INTO retention VALUES (1, 0);

CREATE TABLE agents (
  id BLOB NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  version INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  spec TEXT NOT NULL
) STRICT;
CREATE INDEX agents_by_name ON agents (colony, name, id);

CREATE TABLE agent_versions (
  agent BLOB NOT NULL,
  version INTEGER NOT NULL,
  colony BLOB NOT NULL,
  status TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  spec TEXT NOT NULL,
  PRIMARY KEY (agent, version)
) STRICT;

CREATE TABLE sessions (
  id BLOB NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  agent BLOB NOT NULL,
  agent_version INTEGER NOT NULL,
  hive BLOB,
  epoch INTEGER NOT NULL,
  status TEXT NOT NULL,
  step_limit INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  finished_at INTEGER,
  approval BLOB,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cached_input_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cost_microusd INTEGER,
  model_calls INTEGER NOT NULL,
  steps INTEGER NOT NULL,
  sandbox TEXT NOT NULL,
  workspace TEXT NOT NULL,
  forked_session BLOB,
  forked_step INTEGER,
  created_by TEXT NOT NULL,
  task TEXT NOT NULL,
  prompt TEXT,
  final_answer TEXT,
  error TEXT
) STRICT;
CREATE INDEX sessions_by_status ON sessions (status, id);
CREATE INDEX sessions_by_agent ON sessions (agent, id);
CREATE INDEX sessions_by_colony ON sessions (colony, id);
CREATE INDEX sessions_by_end ON sessions (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE steps (
  id BLOB NOT NULL PRIMARY KEY,
  session BLOB NOT NULL REFERENCES sessions (id),
  idx INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  kind TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  finished_at INTEGER,
  input TEXT NOT NULL,
  output TEXT,
  error TEXT
) STRICT;
CREATE UNIQUE INDEX steps_by_session ON steps (session, idx);

-- A collection's number is a word in the full-text index, so that a search in a small collection
-- costs nothing for the large ones beside it.
CREATE TABLE collections (
  n INTEGER NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  name TEXT NOT NULL,
  UNIQUE (colony, name)
) STRICT;

CREATE TABLE memory_items (
  n INTEGER NOT NULL PRIMARY KEY,
  id BLOB NOT NULL UNIQUE,
  colony BLOB NOT NULL,
  collection INTEGER NOT NULL REFERENCES collections (n),
  embedding_model TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  source BLOB,
  metadata TEXT NOT NULL,
  text TEXT NOT NULL
) STRICT;
CREATE INDEX memory_by_colony ON memory_items (colony, id);
CREATE INDEX memory_by_collection ON memory_items (collection, id);

-- Little-endian f32. Apart from the items, so that reading texts does not read vectors and a
-- search by vector does not read texts.
CREATE TABLE memory_vectors (
  item INTEGER NOT NULL PRIMARY KEY REFERENCES memory_items (n) ON DELETE CASCADE,
  collection INTEGER NOT NULL,
  model TEXT NOT NULL,
  dims INTEGER NOT NULL,
  vector BLOB NOT NULL
) STRICT;
CREATE INDEX memory_vectors_by_collection ON memory_vectors (collection, model, dims);

-- Outlives its item: a key seen once stays seen.
CREATE TABLE memory_keys (
  key BLOB NOT NULL PRIMARY KEY,
  item BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Holds no text, only the index; the writer keeps it in step with the items.
CREATE VIRTUAL TABLE memory_words USING fts5(
  scope, text, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);

CREATE TABLE api_keys (
  id BLOB NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  name TEXT NOT NULL,
  role TEXT NOT NULL,
  hash BLOB NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT;
CREATE UNIQUE INDEX api_keys_by_name ON api_keys (name) WHERE revoked_at IS NULL;

CREATE TABLE settings (
  key TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `id` is a hash of scope and key, so that a client's key is not kept.
CREATE TABLE idempotency (
  id BLOB NOT NULL PRIMARY KEY,
  fingerprint BLOB NOT NULL,
  resource TEXT NOT NULL,
  at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (at);

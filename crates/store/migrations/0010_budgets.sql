-- Budgets. Amounts are millionths of a dollar and tokens; none is above 2^53. A window is added
-- to, never summed up anew; `spend` holds what is asked for most, added up by day, so that no
-- view reads every call.
CREATE TABLE budget_limits (
  id BLOB NOT NULL PRIMARY KEY,
  body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE budget_windows (
  scope TEXT NOT NULL,
  period TEXT NOT NULL,
  start INTEGER NOT NULL,
  spent_microusd INTEGER NOT NULL,
  spent_tokens INTEGER NOT NULL,
  reserved_microusd INTEGER NOT NULL,
  reserved_tokens INTEGER NOT NULL,
  unpriced INTEGER NOT NULL,
  warned INTEGER NOT NULL,
  PRIMARY KEY (scope, period, start)
) STRICT, WITHOUT ROWID;
CREATE TABLE budget_reservations (
  call BLOB NOT NULL PRIMARY KEY,
  body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE model_calls (
  id BLOB NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  session BLOB,
  agent BLOB,
  caller TEXT NOT NULL,
  provider TEXT NOT NULL,
  model TEXT NOT NULL,
  format TEXT NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cached_input_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  microusd INTEGER,
  started_at INTEGER NOT NULL,
  first_byte_ms INTEGER,
  total_ms INTEGER NOT NULL,
  status INTEGER NOT NULL,
  ended TEXT NOT NULL,
  request_digest TEXT,
  request TEXT,
  response_digest TEXT,
  response TEXT
) STRICT;
CREATE INDEX model_calls_by_session ON model_calls (session, id) WHERE session IS NOT NULL;
-- `dim` is colony, agent, model or session; `day` counts from 1970-01-01 of UTC.
CREATE TABLE spend (
  dim TEXT NOT NULL,
  key TEXT NOT NULL,
  day INTEGER NOT NULL,
  calls INTEGER NOT NULL,
  microusd INTEGER NOT NULL,
  unpriced INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cached_input_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  PRIMARY KEY (dim, key, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX spend_by_day ON spend (dim, day);

-- What is due is asked for by kind, and what has expired without a kind: it is rare.
DROP INDEX records_by_wake;
CREATE INDEX records_by_wake ON records (kind, wake, id) WHERE wake IS NOT NULL;
CREATE INDEX records_by_expiry ON records (expires_at, id) WHERE expires_at IS NOT NULL;

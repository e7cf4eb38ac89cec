-- Records that are being deleted: few, and looked for again and again.
CREATE INDEX records_deleting ON records (id) WHERE deleting IS NOT NULL;

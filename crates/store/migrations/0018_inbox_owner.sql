-- The record that an item is asked for.
ALTER TABLE inbox ADD COLUMN owner BLOB;

-- What a session works in, where it was given something to: JSON, as the engine writes it.
ALTER TABLE sessions ADD COLUMN room TEXT;

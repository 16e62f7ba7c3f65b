"""The language of the log: event types, subjects, codec, and the log itself. Imports nothing else of Muster."""

"""The process beside the GPUs: inventory, launching, keeping and reporting workers. Knows only the log's language."""

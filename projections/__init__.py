"""Folds over the log: the cluster's state, the scheduler, the store with its read models, time travel, audit."""

"""Muster: a GPU-cluster scheduler whose only truth is an ordered log of immutable events."""

__version__ = "0.1.0"

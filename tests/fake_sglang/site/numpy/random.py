"""Only the seed is ever set."""

from __future__ import annotations


def seed(value: int) -> None:
    """Does nothing: the fake sampler draws no random numbers."""

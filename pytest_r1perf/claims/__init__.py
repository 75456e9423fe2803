"""What in the three documents is stale, wrong, or cannot be tested here (``r1perf claims``)."""

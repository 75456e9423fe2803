"""How much a platform's numbers move, and what that can detect (``r1perf noise``, ``r1perf power``)."""

"""Which stack for which goal: the deployment decision matrix, over what was measured here (``r1perf recommend``)."""

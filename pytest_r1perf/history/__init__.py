"""Sessions read back as nights of cells, and what changed over them (``r1perf trend``)."""

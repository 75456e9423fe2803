"""``r1perf bisect``: the first release that is slower, with a statistical verdict at every step."""

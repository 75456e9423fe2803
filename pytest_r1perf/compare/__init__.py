"""Two result files outside pytest (``r1perf compare``)."""

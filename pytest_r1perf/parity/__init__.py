"""Parity: the best-practice guide's six-item checklist, over two measured things (``r1perf check-parity``)."""

"""The scaled twins: every procedure of the suite at a size that one device can run, by the same functions.

    pytest -m perf --topology twin,twin-tp2,twin-pp2,twin-dp2,twin-dpa1 --perf-platform cpu perf_tests/twins

Their topologies are their own, so that `--topology tp1`, the main job, leaves them out.
"""

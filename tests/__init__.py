"""Tests; those that need the real SGLang are in `tests/rig`."""

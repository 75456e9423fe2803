"""Starting a benchmark, watching it, and ending every process of it."""

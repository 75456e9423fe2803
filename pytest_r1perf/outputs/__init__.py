"""Whether two environments give the same greedy answers."""

"""The R1 suite: the three seed documents as tests. docs/seeds.md maps every statement to the test that carries it."""

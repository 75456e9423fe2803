"""Text for people and machines, made from results: nothing here measures or judges."""

"""``mode="engine"``: one engine a round for all cells that can share it."""

"""``mode="serve"``: one server a round for all cells that can share it, and SGLang's own clients against it."""

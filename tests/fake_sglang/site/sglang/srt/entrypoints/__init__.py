"""A stand-in for SGLang in the plugin's own tests: nothing of the real one is in here."""

"""Everything that knows an SGLang spelling: command line, probe, log, result."""

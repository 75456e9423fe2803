"""pytest-r1perf: performance regression tests of DeepSeek-R1 on SGLang."""

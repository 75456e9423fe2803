"""The stress sweep of the private-deployment guide, and what its results say: ``r1perf stress``."""

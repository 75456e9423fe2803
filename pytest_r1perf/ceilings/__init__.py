"""The most that the hardware can do with a workload."""

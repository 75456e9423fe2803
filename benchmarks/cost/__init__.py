"""What measuring through the plugin costs: time a verdict in each mode, and throughput of what is measured."""

"""What a node or a graph costs on a target: measured, from the timing database, or estimated and named as
such.

Start at `targets.find_target`, `node_costs.NodeCosts` and `timings.Timings`; docs/measuring.md tells the
whole.
"""

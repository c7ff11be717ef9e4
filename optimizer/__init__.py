"""The pipeline: `optimize`, batches over a zoo, and the command line."""

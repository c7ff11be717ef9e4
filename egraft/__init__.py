"""egraft: a superoptimizer for tensor graphs."""

__version__ = "0.1.0"

"""Rewrite rules: declarations by family, the pattern language, the engine that fires them, and the rule checker."""

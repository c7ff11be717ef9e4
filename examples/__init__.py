"""Programs that use egraft, run from a checkout: `python -m examples.digits`, `python -m examples.text`."""

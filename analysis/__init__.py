"""Results to figures, tables and a report: `python -m analysis results/NAME`."""

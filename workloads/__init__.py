"""Request sources: what is sent to a server, decided by a seed and never by what is measured."""

from workloads.prompt import Phase, Prompt, point_rng
from workloads.source import Source, check_files, make_source

__all__ = ["Phase", "Prompt", "Source", "check_files", "make_source", "point_rng"]

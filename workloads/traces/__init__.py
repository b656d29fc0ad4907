"""Selection traces: what every layer selected at every step, in a file. See `layout` for the format."""

from workloads.traces.layout import TraceError, TraceHeader
from workloads.traces.reader import Stream, Trace
from workloads.traces.writer import TraceWriter

__all__ = ["Stream", "Trace", "TraceError", "TraceHeader", "TraceWriter"]

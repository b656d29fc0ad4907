"""Replay of selection streams under replacement policies: which entries should stay on the device?"""

from workloads.replay.lane import Lane
from workloads.replay.policies import MAX_CACHE_SLOTS, POLICIES, ReplayConfig
from workloads.replay.run import Block, ReplayResult, Stream, replay, replay_stream, step_rates

__all__ = [
    "MAX_CACHE_SLOTS",
    "POLICIES",
    "Block",
    "Lane",
    "ReplayConfig",
    "ReplayResult",
    "Stream",
    "replay",
    "replay_stream",
    "step_rates",
]

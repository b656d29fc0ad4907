"""Whether the exact systems said the same: their texts for the same prompts, under greedy decoding.

Requests are matched by concurrency, repeat and prompt. Systems whose outputs are invalid are counted for
information only, never judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis import labels
from analysis.frame import Experiment, Group
from harness import store
from harness.records import Status

_ROUNDING = (
    "greedy text may differ where batches are composed differently, since sums round differently: expected without "
    "engine.batch_invariant; experiment=exactness compares with it"
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """One series against the reference. `compared` requests were answered by both with some text."""

    words: str
    reference: str
    outputs_valid: bool
    compared: int
    equal: int
    first_difference: str | None = None  # where, in words
    batch_invariant: bool = True  # False: a request's rounding depends on who else is in its batch

    def sentence(self) -> str:
        """The finding as one line of the table and the report."""
        if not self.outputs_valid:
            differ = self.compared - self.equal
            return f"{self.words}: not compared (outputs invalid); {differ} of {self.compared} differ"
        if not self.compared:
            return f"{self.words}: outputs not compared with {self.reference} (no text for the same prompt)"
        found = (
            f"{self.words}: outputs equal to {self.reference}: {self.equal}/{labels.plural(self.compared, 'request')}"
        )
        if self.first_difference is None:
            return found
        return f"{found}; first difference: {self.first_difference}"

    @property
    def may_be_rounding(self) -> bool:
        """Whether a difference is what unequal batches explain."""
        return self.outputs_valid and self.first_difference is not None and not self.batch_invariant


def check(experiment: Experiment, group: Group) -> list[Agreement] | str:
    """Every other series against full KV (else the first exact one); a string says why none is compared."""
    if group.points.empty:
        return "outputs not compared: no point is ok"
    exact = [i for i, series in enumerate(group.series) if series.outputs_valid]
    temperatures = {_temperature(experiment, series.cell_id) for series in group.series}
    if temperatures != {0.0}:
        shown = ", ".join(sorted("unknown" if t is None else f"{t:g}" for t in temperatures))
        return f"outputs not compared: that needs greedy decoding, and the temperature is {shown}"
    if not exact or len(group.series) < 2:
        return "outputs not compared: there is one system only"
    texts = [_texts(group, i) for i in range(len(group.series))]
    found = []
    for i, series in enumerate(group.series):
        base = group.baseline_of(i)
        base = exact[0] if base is None else base
        if i != base:
            words = "full KV" if group.series[base].system == "full_kv" else group.series[base].short
            one = _compare(group, series.short, words, series.outputs_valid, texts[i], texts[base])
            found.append(replace(one, batch_invariant=_batch_invariant(experiment, series.cell_id)))
    return found


def sentences(found: list[Agreement] | str) -> list[str]:
    """`check`'s findings as lines; what may explain several differences is said once, last."""
    if isinstance(found, str):
        return [found]
    explanation = [_ROUNDING] if any(one.may_be_rounding for one in found) else []
    return [one.sentence() for one in found] + explanation


def _temperature(experiment: Experiment, cell_id: str) -> float | None:
    workload = experiment.configs[cell_id].get("workload")
    value = workload.get("temperature") if isinstance(workload, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _batch_invariant(experiment: Experiment, cell_id: str) -> bool:
    engine = experiment.configs[cell_id].get("engine")
    return not isinstance(engine, dict) or engine.get("batch_invariant") is not False


_MATCH = ["concurrency", "repeat", "prompt_sha", "nth"]


def _texts(group: Group, index: int) -> pd.DataFrame:
    """The answers of one series' ok points: _MATCH columns and `output_text`."""
    rows = group.rows[(group.rows["series"] == index) & (group.rows["status"] == Status.OK.value)]
    parts = [pd.DataFrame(columns=[*_MATCH, "output_text"])]
    for row in rows.itertuples():
        one = store.read_requests(Path(row.point_path), ["prompt_sha", "output_text", "error"])
        one = one[one["error"].isna() & (one["output_text"] != "")].drop(columns="error")
        nth = one.groupby("prompt_sha").cumcount()
        parts.append(one.assign(concurrency=row.concurrency, repeat=row.repeat, nth=nth))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def _compare(
    group: Group, words: str, reference: str, valid: bool, mine: pd.DataFrame, base: pd.DataFrame
) -> Agreement:
    both = mine.merge(base, on=_MATCH, suffixes=("", "_base"))
    different = both[both["output_text"] != both["output_text_base"]]
    where = None
    if len(different):
        first = different.sort_values(_MATCH).iloc[0]
        at = _first_unequal(first["output_text"], first["output_text_base"])
        point = f"{group.axis.name} {group.at(first['concurrency'])}"
        where = f"{point}, prompt {first['prompt_sha'][:12]}, character {at}"
    return Agreement(words, reference, valid, len(both), len(both) - len(different), where)


def _first_unequal(a: str, b: str) -> int:
    """The 0-based index of the first character that differs; the shorter's length if one starts the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

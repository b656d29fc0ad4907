"""Quality from rows: the table, the figure, and whether a placement changed a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from analysis.draw import draw
from harness import store
from harness.records import ResultRow, Status


def _row(
    selector: str, top_k: int | None, agreement: float, offload: str = "full_kv", off_by: float = 0.0
) -> ResultRow:
    return ResultRow(
        experiment="quality",
        cell_id=f"{selector}-{top_k}-{offload}",
        engine="quality",
        model="smollm2_135m",
        selector=selector,
        platform="cpu",
        offload=offload,
        top_k=top_k,
        cache_slots=None if offload == "full_kv" else 128,
        workload="text_files",
        input_len=1536,
        output_len=128,
        concurrency=8,
        num_requests=8,
        repeat=0,
        status=Status.OK,
        measures={
            "perplexity": 5.0 - agreement + off_by,
            "dense_perplexity": 4.0,
            "agreement": agreement,
            "scored_tokens": 1024,
        },
    )


@pytest.mark.parametrize(("off_by", "says"), [(0.0, "1 of 1 cells"), (1e-9, "0 of 1 cells")])
def test_the_table_and_whether_hisparse_changed_a_number(tmp_path: Path, off_by: float, says: str) -> None:
    rows = [_row("dense", None, 1.0), _row("quest", 64, 0.75), _row("quest", 256, 0.9), _row("window", 64, 0.5)]
    rows.append(_row("quest", 64, 0.75, "hisparse_sync", off_by))
    for row in rows:
        store.write_point(tmp_path / "quality", row, [], config_yaml="{}", env={}, server_log="")
    drawn = draw(tmp_path / "quality", None)
    console = Console(width=120, record=True)
    console.print(drawn.summary)
    text = console.export_text()
    assert f"hisparse_sync: {says} have exactly the numbers of full_kv" in text
    assert "1,024 next tokens of 8 texts, each after 1,536 tokens or more of text_files" in text
    agreement, perplexity = (line.split() for line in text.splitlines() if "quest" in line and "full_kv" in line)
    assert agreement[2:] == ["75.0%", "90.0%"]
    assert perplexity[2:] == ["4.250", "4.100"]
    assert {path.name for path in drawn.figures} == {"quality.pdf", "quality.png"}
    assert "Next-token agreement with full attention" in drawn.report.read_text()

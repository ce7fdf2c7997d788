"""Recording a real vLLM on the CPU, which takes minutes to install and half a minute to start: run on request.

SIMLORA_VLLM_CPU_VENV=FOLDER python -m pytest -m server tests/e2e/test_record_vllm.py
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from test_record import rows

from simlora.runs.recorded import read_recorded_run
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.validate.compare import validate
from simlora.validate.fit import fit_from_runs
from simlora.validate.record import RecordOptions, record

SCRIPT = Path(__file__).parents[2].parent / "shared" / "tools" / "start_vllm_cpu.sh"
START_S = 240.0
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1024, "head_dim": 64}
RANK = 8

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]


def write_model(folder: Path) -> Path:
    folder.mkdir()
    config = {
        **SHAPE,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"w{index}": index for index in range(SHAPE["vocab_size"])}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    pre = {"type": "Whitespace"}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": pre}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, **empty}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def write_adapter(folder: Path) -> Path:
    """A PEFT adapter of zeros on the query projections, as a safetensors file by hand."""
    folder.mkdir()
    header, offset = {}, 0
    for layer in range(SHAPE["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for part, shape in (("lora_A", [RANK, 256]), ("lora_B", [256, RANK])):
            size = 2 * shape[0] * shape[1]
            entry = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
            header[f"{name}.{part}.weight"] = entry
            offset += size
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "task_type": "CAUSAL_LM", "lora_dropout": 0.0}))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, int]]:
    """(URL, model folder, process id) of a server with the adapters lora-1 and lora-2."""
    venv = os.environ.get("SIMLORA_VLLM_CPU_VENV")
    if venv is None or not SCRIPT.is_file():
        pytest.skip("needs SIMLORA_VLLM_CPU_VENV and ../shared/tools/start_vllm_cpu.sh")
    folder = tmp_path_factory.mktemp("vllm")
    model = write_model(folder / "model")
    adapters = [f"lora-{index}={write_adapter(folder / f'adapter-{index}')}" for index in (1, 2)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["bash", str(SCRIPT), venv, str(model), str(port), "--lora-modules", *adapters]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/v1/models", process, folder / "server.log")
        yield f"http://127.0.0.1:{port}", model, process.pid
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(1)
    pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")


CPU = {"name": "l4", "hbm_gb_per_s": 20.0, "bf16_tflops": 0.04}
"""A core or two as a GPU: what is slow there is Python, and prompts by their tokens."""


def scenario(model: Path, requests: int = 40, output_tokens: int = 8, rate_rps: float = 8.0, seed: int = 1) -> Scenario:
    return scenario_from_dict(
        {
            "name": f"vllm-cpu-{seed}",
            "seed": seed,
            "model": str(model),
            "gpu": CPU,
            "engine": {
                "max_loras": 2,
                "max_lora_rank": 16,
                "max_cpu_loras": 4,
                "max_num_seqs": 16,
                "max_num_batched_tokens": 2048,
                "max_model_len": 512,
                "enforce_eager": True,
                "async_scheduling": False,
            },
            "adapters": {
                "count": 2,
                "ranks": RANK,
                "base_fraction": 0.3,
                "target_modules": ["q_proj"],
                "preload": True,
            },
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": rate_rps},
                "prompt_tokens": {"kind": "uniform", "min": 8, "max": 60},
                "output_tokens": {"kind": "fixed", "value": output_tokens},
                "num_requests": requests,
            },
        }
    )


def test_a_real_server(server: tuple[str, Path, int], tmp_path: Path) -> None:
    url, model, _ = server
    outcome = record(url, scenario(model), tmp_path / "run")
    assert (outcome.offered, outcome.completed, outcome.failures) == (40, 40, {})
    recorded = read_recorded_run(tmp_path / "run")
    assert recorded.run.resolved.num_gpu_blocks is not None
    assert recorded.run.resolved.max_model_len == 512
    assert recorded.steps is not None and len(recorded.steps.t_s) > 3
    table = rows(tmp_path / "run")
    assert {row["model"] for row in table} == {str(model), "lora-1", "lora-2"}
    assert all(row["output_tokens"] == "8" for row in table)
    report = validate([tmp_path / "run"])
    assert all(row.measured is not None for row in report.rows)
    assert any("simulated by the rules of 0.20" in note for note in report.notes)


def test_a_fit_to_one_recording_predicts_the_next(server: tuple[str, Path, int], tmp_path: Path) -> None:
    """Loosely: other programs share the CPU with the server, and one recording of it differs from the next by a third
    of its step time."""
    url, model, _ = server
    record(url, scenario(model, 120, 24, 6.0), tmp_path / "one")
    record(url, scenario(model, 80, 40, 4.0, seed=2), tmp_path / "two")
    report = fit_from_runs([tmp_path / "one"], None, tmp_path / "own.json")
    before, after = ({error.metric: error for error in found} for found in (report.before, report.after))
    assert abs(after["tpot_mean_s"].residual) <= max(abs(before["tpot_mean_s"].residual), 3.0)
    rows = {row.metric: row for row in validate([tmp_path / "two"], calibration=str(report.path)).rows}
    assert abs(rows["request_throughput_rps"].error or 0.0) < 0.1
    assert abs(rows["tpot_mean_s"].error or 0.0) < 0.6 and abs(rows["ttft_p50_s"].error or 0.0) < 0.7


def test_an_adapter_that_it_lacks(server: tuple[str, Path, int], tmp_path: Path) -> None:
    url, model, _ = server
    outcome = record(url, scenario(model, 20), tmp_path / "run", RecordOptions(adapters=["lora-1", "nobody"]))
    assert outcome.rejected == outcome.failures["http"] > 0
    assert outcome.completed == 20 - outcome.rejected


def test_a_server_that_is_killed(server: tuple[str, Path, int], tmp_path: Path) -> None:
    """The last test: nothing is left of the server."""
    url, model, pid = server

    def kill(sent: int, finished: int, failed: int) -> None:
        if finished == 10:
            os.killpg(pid, signal.SIGKILL)

    outcome = record(url, scenario(model), tmp_path / "run", RecordOptions(give_up_s=1.0), kill)
    assert outcome.offered == 40
    assert 10 <= outcome.completed < 40
    assert outcome.server_died_s is not None
    assert len(rows(tmp_path / "run", "errors.csv")) == 40 - outcome.completed
    assert validate([tmp_path / "run"]).rows

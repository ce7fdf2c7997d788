"""Parts of a recorder that need no network: the stream of tokens, the metrics, the prompts."""

from __future__ import annotations

import json

import pytest

from simlora.scenario.load import scenario_from_dict
from simlora.validate.record_client import Stream, StreamError
from simlora.validate.record_load import adapter_names, make_offers
from simlora.validate.record_server import cache_info, parse_metrics, running_adapters, total, usage


def event(**data: object) -> str:
    return f"data: {json.dumps(data)}"


def chunk(text: str = " a", reason: str | None = None, **more: object) -> str:
    return event(choices=[{"text": text, "finish_reason": reason}], **more)


def test_a_chunk_is_a_token_where_the_server_does_not_count() -> None:
    stream = Stream()
    lines = (chunk(), ": a comment", "", chunk(text=""), chunk(), chunk(text="", reason="length"))
    assert all(stream.feed(line, float(now)) for now, line in enumerate(lines))
    assert not stream.feed("data: [DONE]", 9.0)
    assert stream.token_s == [0.0, 3.0, 4.0], "an empty text can be a token, the end of the stream is none"
    assert (stream.tokens, stream.finished, stream.prompt_tokens) == (3, True, None)


def test_a_running_count_goes_before() -> None:
    stream = Stream()
    for now, (count, reason) in enumerate(((1, None), (1, None), (4, None), (4, "stop"))):
        stream.feed(chunk(reason=reason, usage={"prompt_tokens": 7, "completion_tokens": count}), float(now))
    stream.feed(event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 4}), 9.0)
    assert stream.token_s == [0.0, 2.0], "three tokens in one chunk came together"
    assert (stream.tokens, stream.prompt_tokens, stream.finished) == (4, 7, True)


def test_a_total_at_the_end_corrects_the_count() -> None:
    stream = Stream()
    stream.feed(chunk(), 0.0)
    stream.feed(chunk(reason="length"), 1.0)
    stream.feed(event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 5}), 2.0)
    assert (stream.tokens, stream.token_s) == (5, [0.0, 1.0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data: {", "not JSON"),
        ("data: [1]", "not an object"),
        (event(error={"message": "engine died"}), "engine died"),
        (event(error="gone"), "gone"),
    ],
)
def test_what_is_no_completion(line: str, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        Stream().feed(line, 0.0)


METRICS = """# HELP vllm:num_requests_running Running
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:num_preemptions_total{engine="0"} 12.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="512",cache_dtype="a \\"b\\""} 1.0
vllm:lora_requests_info{running_lora_adapters="a,b",waiting_lora_adapters="b"} 1.7e+09
vllm:lora_requests_info{running_lora_adapters="",waiting_lora_adapters=""} 1.6e+09
oops
python_info nan 1700000000
"""


def test_metrics() -> None:
    metrics = parse_metrics(METRICS)
    assert total(metrics, "vllm:num_requests_running") == 7
    assert total(metrics, "vllm:num_preemptions") == 12
    assert total(metrics, "vllm:absent") is None
    assert usage(metrics) == pytest.approx(0.3)
    assert running_adapters(metrics) == 2, "the series that was set last"
    assert cache_info(metrics) == {"block_size": "16", "num_gpu_blocks": "512", "cache_dtype": 'a "b"'}
    assert usage(parse_metrics("vllm:gpu_cache_usage_perc 0.5")) == 0.5
    assert (running_adapters({}), cache_info({}), usage({})) == (None, {}, None)


def test_prompts_depend_on_the_seed_and_the_request_only() -> None:
    base = {"model": "llama-3.2-1b", "workload": {"num_requests": 4}, "adapters": {"count": 1}}

    def prompts(seed: int, **changes: object) -> list[object]:
        scenario = scenario_from_dict({**base, **changes, "seed": seed})
        offers = make_offers(scenario, "base", ["a"], "token-ids")
        return [offers.prompt(index) for index in range(len(offers))]

    assert prompts(1) == prompts(1)
    assert prompts(1) != prompts(2)
    longer = prompts(1, workload={"num_requests": 6})
    assert longer[:4] == prompts(1)


def test_adapter_names() -> None:
    assert adapter_names("lora-{id}", [], 3) == ["lora-1", "lora-2", "lora-3"]
    assert adapter_names(["x"], ["y"], 1) == ["x"]
    assert adapter_names(None, ["y", "z"], 1) == ["y", "z"]

"""What the benchmark's environment drops, what is recorded, and that no secret is."""

from __future__ import annotations

import pytest

from pytest_r1perf.childenv import compose, recorded, redact, secret_in


def test_pytests_own_parts_are_dropped_and_the_rest_is_kept() -> None:
    ambient = {
        "PATH": "/bin",
        "HOME": "/root",
        "PYTEST_CURRENT_TEST": "x",
        "PYTEST_XDIST_WORKER": "gw0",
        "COV_CORE_SOURCE": "x",
        "COVERAGE_PROCESS_START": "x",
        "PYTHONPATH": "/here",
        "PYTHONHOME": "/there",
        "PYTHONSTARTUP": "x",
        "PYTHONWARNINGS": "error",
        "VIRTUAL_ENV": "/venv",
        "SGLANG_IS_IN_CI": "true",
        "PYTHONHASHSEED": "0",
        "MY_PYTEST_THING": "1",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    assert compose({}, ambient) == {
        **{"PATH": "/bin", "HOME": "/root", "PYTHONHASHSEED": "0", "MY_PYTEST_THING": "1", "CUDA_VISIBLE_DEVICES": "3"}
    }
    assert len(ambient) == 15  # untouched


def test_ones_own_variables_win_even_dropped_ones() -> None:
    assert compose({"A": "new", "SGLANG_IS_IN_CI": "1"}, {"A": "old", "SGLANG_IS_IN_CI": "true"}) == {
        **{"A": "new", "SGLANG_IS_IN_CI": "1"}
    }


def test_the_real_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R1PERF_SOME_TEST", "here")
    made = compose({"OWN": "1"})
    assert made["R1PERF_SOME_TEST"] == "here"
    assert made["OWN"] == "1"
    assert "PYTEST_CURRENT_TEST" not in made  # pytest sets it while this runs


def test_only_what_can_change_a_measurement_is_recorded_in_order() -> None:
    env = {
        **{"SGLANG_X": "1", "NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1"},
        **{"LD_PRELOAD": "x.so", "LD_LIBRARY_PATH": "/lib", "DG_CACHE_DIR": "/c", "TORCHDYNAMO_DISABLE": "1"},
        **{"HOME": "/root", "MAIL": "me", "SSH_AUTH_SOCK": "/s", "AWS_SECRET_ACCESS_KEY": "x", "MY_NCCL_X": "1"},
    }
    assert list(recorded(env).items()) == [
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("DG_CACHE_DIR", "/c"),
        ("LD_LIBRARY_PATH", "/lib"),
        ("LD_PRELOAD", "x.so"),
        ("NCCL_ALGO", "Ring"),
        ("OMP_NUM_THREADS", "1"),
        ("SGLANG_X", "1"),
        ("TORCHDYNAMO_DISABLE", "1"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "hf_token", "SGLANG_API_KEY", "SGLANG_APIKEY", "OPENAI_API_KEY"),
        *("AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PASSWD", "SSH_PASSPHRASE", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("SGLANG_ENCRYPTION_KEY", "HF_AUTH", "SGLANG_AUTHORIZATION", "GH_TOKEN_2"),
    ],
)
def test_secrets_by_name(name: str) -> None:
    assert redact(name, "s3cr3t") == "***"
    assert "s3cr3t" not in str(recorded({name: "s3cr3t", "SGLANG_X": "1"}))


@pytest.mark.parametrize(
    "name",
    [
        "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",  # a real tuning variable of SGLang's scheduler
        "SGLANG_MAX_TOKENS",
        "HF_TOKENIZERS_PARALLELISM",
        "SGLANG_TOKENIZER_WORKERS",
        "NCCL_AUTHOR",
        "SGLANG_KEYS",
    ],
)
def test_tuning_variables_are_not_taken_for_secrets(name: str) -> None:
    """Hidden values look equal, and a change between two runs would go unseen."""
    assert redact(name, "4096") == "4096"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://me:s3cr3t@mirror.example/hf", "https://***@mirror.example/hf"),
        ("https://s3cr3t@mirror.example", "https://***@mirror.example"),
        ("https://mirror.example/a@b", "https://mirror.example/a@b"),
        ("http://u:p@a http://u:p@b", "http://***@a http://***@b"),
        ("mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"),
    ],
)
def test_a_login_within_a_url(value: str, expected: str) -> None:
    assert recorded({"HF_ENDPOINT": value}) == {"HF_ENDPOINT": expected}


@pytest.mark.parametrize(
    "options",
    [
        ("-e", "HF_TOKEN=x"),
        ("--gpus", "all", "-e", "A=1", "-e", "HF_TOKEN=x"),
        ("-eHF_TOKEN=x",),
        ("-e=HF_TOKEN=x",),
        ("-e HF_TOKEN=x",),
        ("-te", "HF_TOKEN=x"),
        ("--env", "HF_TOKEN=x"),
        ("--env=HF_TOKEN=x",),
        ("--env HF_TOKEN=x",),
        ("--env=HF_TOKEN=a\nb",),
    ],
)
def test_a_secret_among_a_containers_options_is_named(options: tuple[str, ...]) -> None:
    assert secret_in(options) == "HF_TOKEN"


def test_a_login_in_a_containers_options_is_a_secret() -> None:
    assert secret_in(("-e", "HTTPS_PROXY=http://me:pw@proxy:3128")) == "HTTPS_PROXY"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-e", "HF_TOKEN"),
        ("-e",),
        ("--env=HF_TOKEN",),
        ("--env=HF_TOKEN=",),
        ("-e", "NCCL_DEBUG=INFO", "--env=SGLANG_MAX_TOKENS=5"),
        ("--env-file", "/etc/HF_TOKEN=x"),
        ("--env-file=HF_TOKEN=x",),
        ("--entrypoint", "x", "--label", "HF_TOKEN=x"),
        ("-v", "/a:/HF_TOKEN=b"),
    ],
)
def test_containers_options_without_a_secret(options: tuple[str, ...]) -> None:
    assert secret_in(options) is None

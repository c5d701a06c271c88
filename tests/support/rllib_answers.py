"""RLlib's answers to fixed questions: from RLlib itself in `make integration`, elsewhere from tests/testdata/rllib_answers.

A test that takes `answers` runs twice. Marked `integration`, `answers(call)` asks RLlib, whose answer must still be the stored
one. Without the mark, `answers(call)` is the stored answer, and `call`, which imports ray, is never called.
`OFFLINE_CLI_RLLIB_ANSWERS=write pytest -m "integration or nightly" ...` stores them anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "rllib_answers"
WRITES = os.environ.get("OFFLINE_CLI_RLLIB_ANSWERS") == "write"
LANES = [pytest.param("rllib", marks=pytest.mark.integration), "stored"]
asked_nightly = pytest.mark.parametrize("answers", [pytest.param("rllib", marks=pytest.mark.nightly), "stored"], indirect=True)
"""Of a test that takes `answers`: RLlib itself is asked by `make nightly` alone."""


class Store:
    """The answers to the questions of one test module: numbers and text, and each array once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"arrays": [], "answers": {}}
        self._arrays: list[list[str]] = document["arrays"]  # dtype, shape, bytes
        self._answers: dict[str, Any] = document["answers"]

    def __getitem__(self, question: str) -> Any:
        return self._decoded(self._answers[question])

    def __setitem__(self, question: str, answer: Any) -> None:
        self._answers[question] = self._encoded(answer)
        parts = [
            f'"{name}": {opened}\n' + ",\n".join(lines) + f"\n{closed}"
            for name, opened, closed, lines in (
                ("arrays", "[", "]", [json.dumps(array) for array in self._arrays]),
                ("answers", "{", "}", [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in sorted(self._answers.items())]),
            )
        ]
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {"dict": [[self._encoded(key), self._encoded(part)] for key, part in value.items()]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self._encoded(part) for part in value]}
        if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
            return value
        kind = "array" if isinstance(value, np.ndarray) else "scalar" if isinstance(value, np.generic) else "tensor"
        array = np.asarray(value)
        assert array.dtype.kind in "biuf", f"{type(value)} is no answer that can be stored"
        text = base64.b64encode(array.tobytes()).decode()
        held = [array.dtype.str, json.dumps(array.shape), text]
        if held not in self._arrays:
            self._arrays.append(held)
        return {kind: self._arrays.index(held)}

    def _decoded(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, value),) = node.items()
        if kind == "dict":
            return {self._decoded(key): self._decoded(part) for key, part in value}
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](map(self._decoded, value))
        dtype, shape, text = self._arrays[value]
        array = np.frombuffer(base64.b64decode(text), dtype).reshape(json.loads(shape)).copy()
        if kind == "tensor":
            import torch

            return torch.from_numpy(array)
        return array if kind == "array" else array[()]


store = cache(Store)


class Answers:
    """What RLlib answers in one test, question by question."""

    def __init__(self, stored: Store, test: str, *, live: bool) -> None:
        self.live = live  # whether RLlib itself is asked
        self._store, self._test, self._asked = stored, test, 0

    def __call__(self, call: Callable[[], Any]) -> Any:
        """RLlib's answer to the next question of this test, which `call` asks it."""
        question, self._asked = f"{self._test} {self._asked}", self._asked + 1
        if not self.live:
            return self._store[question]
        answer = call()
        if WRITES:
            self._store[question] = answer
        assert_still(answer, self._store[question], question)
        return answer


def assert_still(found: Any, stored: Any, where: str) -> None:
    """Asserts that an answer is the stored one: floats to some digits, all else exactly."""
    if isinstance(stored, dict):
        assert list(found) == list(stored), where
        for key, part in stored.items():
            assert_still(found[key], part, f"{where} {key}")
    elif isinstance(stored, (list, tuple)):
        assert (type(found), len(found)) == (type(stored), len(stored)), where
        for number, (one, part) in enumerate(zip(found, stored, strict=True)):
            assert_still(one, part, f"{where} {number}")
    elif stored is None or isinstance(stored, str):
        assert found == stored, where
    else:
        mine, other = np.asarray(found), np.asarray(stored)
        assert (type(found), mine.dtype, mine.shape) == (type(stored), other.dtype, other.shape), where
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-7, err_msg=where)


Trail = list[tuple[str, str]]
"""Calls, and what they were answered, in brief."""


def brief(answer: Any) -> str:
    """An answer as one word: itself where it is short, else a digest."""
    text = _text(answer)
    return text if len(text) <= 16 else hashlib.sha256(text.encode()).hexdigest()[:12]


def brief_error(error: Exception, kind_matters: bool) -> str:
    """An error as one word; callers of getters may catch IndexError and KeyError."""
    kinds = [kind.__name__ for kind in (IndexError, KeyError) if kind_matters and isinstance(error, kind)]
    return ":".join(["raises", *kinds])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key}:{_text(part)}" for key, part in value.items())) + "}"
    if isinstance(value, (list, tuple, set)):
        value = sorted(value) if isinstance(value, set) else value
        return f"{type(value).__name__[0]}[{','.join(map(_text, value))}]"
    if isinstance(value, (np.ndarray, np.generic)):
        numbers = value + 0.0 if value.dtype.kind == "f" else value  # no zero is negative
        return f"{type(value).__name__}:{value.dtype.str}{value.shape}{numbers.tolist()}".replace(" ", "")
    return repr(value + 0.0 if isinstance(value, float) else value).replace(" ", "")


def assert_trail(found: Trail, stored: str, where: str) -> None:
    """Asserts that ours answered as RLlib did, whose answers are `stored`, a word each."""
    words = stored.split()
    for at, ((call, answer), word) in enumerate(zip(found, words, strict=False)):
        same = answer == word or (word.startswith("raises") and answer.startswith(word))
        assert same, f"{where}, answer {at}, to {call}: {answer}, and RLlib's is {word}; before: {found[max(at - 3, 0) : at]}"
    assert len(found) == len(words), where


@pytest.fixture(params=LANES)
def answers(request: pytest.FixtureRequest) -> Answers:
    """A function that asks RLlib: `answers(call)`."""
    live = request.param == "rllib"
    if live:
        pytest.importorskip("ray", reason="RLlib comes with the extra [ray]")
    lane = request.node.callspec.id.split("-")
    test = "-".join([request.node.originalname, *(part for part in lane if part != request.param)])
    return Answers(
        store(FOLDER / f"{request.path.parent.name}_{request.path.stem.removeprefix('test_')}.json"), test, live=live
    )

"""Connector pipelines for people: tables of `apply --show` and `--trace`, and the three default pipelines as a picture (SVG).

A table is a row of headings and rows of texts; a cell of several lines, a tuple, stands for several columns of a batch.
`cli/render.py` draws it. The picture is drawn from the pipelines themselves, so it lists no piece by hand:

`python -m offline_cli.report.pipelines > docs/connectors.svg`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import gymnasium as gym
import numpy as np

from offline_cli.connectors.common.batching import AgentToModuleMapping
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2
from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline
from offline_cli.connectors.learner.default_pipeline import learner_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline

__all__ = ["Grid", "pipelines_svg", "shown", "traced"]

Cell = str | tuple[str, ...]  # a text, or one a line
Grid = tuple[Sequence[str], Sequence[Sequence[Cell]]]  # headings, rows
NOT_KNOWN: Final = "not known"
START: Final = "(the episodes)"

WIDTH, GAP, HEIGHT, STEP, MARGIN, TITLE = 300, 36, 30, 46, 24, 64  # pixels
STATEFUL = ("AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch", "RemoveSingleTsTimeRankFromBatch")
AGENTS = ("AgentToModuleMapping", "ModuleToAgentUnmapping")
STYLE = """
  text { font-family: Helvetica, Arial, sans-serif; font-size: 12px; fill: #1b1f24; text-anchor: middle }
  .title { font-size: 16px; font-weight: bold }
  .about { font-size: 11px; fill: #57606a }
  .piece { fill: #ddf4ff; stroke: #54aeff }
  .some { fill: #ffffff; stroke: #54aeff }
  .own { fill: #fff8c5; stroke: #bf8700; stroke-dasharray: 5 3 }
  .end { fill: #eaeef2; stroke: #8c959f }
  .arrow { stroke: #57606a; marker-end: url(#tip) }
"""


def shown(told: Mapping[str, Any]) -> Grid:
    """One row per piece, from `PipelineShown.as_dict()`: spaces before and after, and what it does to the batch's columns."""
    rows: list[Sequence[Cell]] = [
        [
            piece["name"],
            piece["input_observation_space_text"],
            piece["observation_space_text"],
            piece["action_space_text"],
            _change(piece["columns_before"], piece["columns"]),
        ]
        for piece in told["pieces"]
    ]
    whole = told["pieces"][-1]["columns"] if told["pieces"] else []
    after = NOT_KNOWN if whole is None else tuple(map(_column, whole)) or "empty"
    return ("piece", "observations before", "observations after", "actions after", "what it does to the batch"), [
        *rows,
        ["train batch", "", "", "", after],
    ]


def _change(before: Sequence[Mapping[str, Any]] | None, after: Sequence[Mapping[str, Any]] | None) -> Cell:
    if after is None or before is None:
        return NOT_KNOWN
    old, new = ({column["name"]: column for column in columns} for columns in (before, after))
    lines = [f"adds {_column(column)}" for name, column in new.items() if name not in old]
    lines += [
        f"{name}: {_kind(old[name])} becomes {_kind(new[name])}" for name in new if name in old and old[name] != new[name]
    ]
    lines += [f"takes out {name}" for name in old if name not in new]
    return tuple(lines) or "nothing"


def _column(column: Mapping[str, Any]) -> str:
    return f"{column['name']}: {_kind(column)}"


def _kind(column: Mapping[str, Any]) -> str:
    shape = f" ({', '.join(map(str, column['shape']))})" if column["shape"] else ""
    return f"{column['held']} of {column['dtype']}{shape}"


def traced(told: Mapping[str, Any]) -> Grid:
    """A row per column of the batch after each piece that changed any, from `PipelineTraced.as_dict()`.

    What a piece has changed in the episodes comes first.
    """
    rows = [_values("" if number else START, f"episodes.{one['name']}", one) for number, one in enumerate(told["start"])]
    episodes: Sequence[Mapping[str, Any]] = told["start"]
    columns: Sequence[Mapping[str, Any]] = []
    for piece in told["pieces"]:
        rows += _of_piece(piece, episodes, columns)
        episodes, columns = piece["episodes"], piece["columns"]
    return ("after piece", "column", "holds", "row", "rows", "first values"), rows


def _of_piece(
    piece: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]
) -> Iterator[Sequence[str]]:
    """`episodes` and `columns`: as they were before."""
    changed = [(f"episodes.{one['name']}", one) for one in piece["episodes"] if one not in episodes]
    held = [] if piece["columns"] == columns else [(one["name"], one) for one in piece["columns"]]
    for number, (name, one) in enumerate([*changed, *held]):
        yield _values("" if number else piece["name"], name, one)
    if not changed and not held:
        yield piece["name"], "as before" if columns else "empty, as before", "", "", "", ""


def _values(piece: str, name: str, seen: Mapping[str, Any]) -> Sequence[str]:
    shape = f"({', '.join(map(str, seen['shape']))})" if seen["shape"] else "one value"
    rows = "" if seen["rows"] is None else f"{seen['rows']:,}"
    return piece, name, f"{seen['held']} of {seen['dtype']}", shape, rows, " ".join(map(_value, seen["first"]))


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class YourOwn(ConnectorV2):
    """Stands where custom pieces go."""

    def __call__(self, *, batch: Batch, **_: object) -> Batch:
        """The batch."""
        return batch


@dataclass(frozen=True, slots=True)
class Column:
    """One pipeline: what goes in, its pieces, what comes out."""

    title: str
    about: str
    start: str
    pieces: Sequence[str]
    end: str


def pipelines_svg() -> str:
    """The picture, as the text of an SVG file; the same text for the same pipelines."""
    columns = _columns()
    width = 2 * MARGIN + len(columns) * WIDTH + (len(columns) - 1) * GAP
    height = 2 * MARGIN + TITLE + STEP * (max(len(column.pieces) for column in columns) + 2) + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>Default connector pipelines</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#57606a"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for index, column in enumerate(columns):
        lines += _drawn(column, MARGIN + index * (WIDTH + GAP))
    legend = "white: does nothing unless the module is stateful, or there are several agents · dashed: your own pieces"
    lines.append(_text(width / 2, height - MARGIN + 8, legend, "about"))
    return "\n".join([*lines, "</svg>", ""])


def _columns() -> list[Column]:
    single = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    both = gym.spaces.Dict({"agent": single})
    mapping = AgentToModuleMapping(rl_module_specs=["agent"], agent_to_module_mapping_fn=lambda agent, episode: agent)
    beside = env_to_module_pipeline(both, both, custom=YourOwn(), mapping=mapping)
    out = module_to_env_pipeline(both, both, custom=YourOwn(), multi_agent=True)
    mapping = AgentToModuleMapping(
        rl_module_specs=["agent"], agent_to_module_mapping_fn=lambda agent, episode: agent, as_learner_connector=True
    )
    learner = learner_pipeline(both, both, custom=YourOwn(), mapping=mapping)
    acting, learning = "RLModule.forward_inference / _exploration", "RLModule.forward_train"
    return [
        Column("env-to-module", "at every step of playing", "growing episodes", _names(beside), acting),
        Column("module-to-env", "at every step of playing", "outputs of the forward pass", _names(out), "environment.step"),
        Column("learner", "once per train batch", "recorded episodes", _names(learner), learning),
    ]


def _names(pipeline: ConnectorPipelineV2) -> list[str]:
    return [name for name, _ in pipeline.named()]


def _drawn(column: Column, left: int) -> Iterator[str]:
    middle = left + WIDTH / 2
    yield _text(middle, MARGIN + 14, column.title, "title")
    yield _text(middle, MARGIN + 34, column.about, "about")
    boxes = [(column.start, "end"), *((name, _pipelines_kind(name)) for name in column.pieces), (column.end, "end")]
    for index, (name, kind) in enumerate(boxes):
        top = MARGIN + TITLE + index * STEP
        if index:
            yield f'<line class="arrow" x1="{middle}" y1="{top - STEP + HEIGHT}" x2="{middle}" y2="{top - 1}"/>'
        yield f'<rect class="{kind}" x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        yield _text(middle, top + HEIGHT / 2 + 4, "your own pieces" if kind == "own" else name)


def _pipelines_kind(name: str) -> str:
    if name == YourOwn.__name__:
        return "own"
    return "some" if name in (*STATEFUL, *AGENTS) else "piece"


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(words)}</text>'


if __name__ == "__main__":
    sys.stdout.write(pipelines_svg())

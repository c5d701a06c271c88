"""The three default pipelines as a picture (SVG), drawn from the pipelines themselves; refuses to list pieces by hand.

`python -m offline_cli.report.pipelines > docs/connectors.svg`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import gymnasium as gym
import numpy as np

from offline_cli.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2
from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline
from offline_cli.connectors.learner.default_pipeline import learner_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline

__all__ = ["pipelines_svg"]

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
        Column("env-to-module", "at every step of playing", "episodes that go on", _names(beside), acting),
        Column("module-to-env", "at every step of playing", "what the forward pass put out", _names(out), "environment.step"),
        Column("learner", "once per train batch", "recorded episodes", _names(learner), learning),
    ]


def _names(pipeline: ConnectorPipelineV2) -> list[str]:
    return [name for name, _ in pipeline.named()]


def _drawn(column: Column, left: int) -> Iterator[str]:
    middle = left + WIDTH / 2
    yield _text(middle, MARGIN + 14, column.title, "title")
    yield _text(middle, MARGIN + 34, column.about, "about")
    boxes = [(column.start, "end"), *((name, _kind(name)) for name in column.pieces), (column.end, "end")]
    for index, (name, kind) in enumerate(boxes):
        top = MARGIN + TITLE + index * STEP
        if index:
            yield f'<line class="arrow" x1="{middle}" y1="{top - STEP + HEIGHT}" x2="{middle}" y2="{top - 1}"/>'
        yield f'<rect class="{kind}" x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        yield _text(middle, top + HEIGHT / 2 + 4, "your own pieces" if kind == "own" else name)


def _kind(name: str) -> str:
    if name == YourOwn.__name__:
        return "own"
    return "some" if name in (*STATEFUL, *AGENTS) else "piece"


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(words)}</text>'


if __name__ == "__main__":
    sys.stdout.write(pipelines_svg())

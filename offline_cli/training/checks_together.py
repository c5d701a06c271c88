"""Whose turn it is among modules that learn in one run, and what they return together in their environment.

Each module has generators of random numbers of its own, and a number of threads. A check of all modules is a row of
metrics.jsonl in the run's folder, which is durable before anything follows from it: a resumed run takes it from there where
modules have gone on since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offline_cli.environments import Environment, open_environment
from offline_cli.errors import BadConfig
from offline_cli.files.locations import Location
from offline_cli.files.staging import whole_file, write_whole
from offline_cli.json_documents import from_json
from offline_cli.modules.devices import use_threads
from offline_cli.playing.agents_together import AgentsTogether
from offline_cli.playing.slots import Purpose
from offline_cli.policies.agents_by_name import RunModules
from offline_cli.policies.run_files import METRICS
from offline_cli.training.checks import Together, returns_of
from offline_cli.training.session import Session

__all__ = ["ChecksTogether", "Prepared"]


@dataclass(slots=True, eq=False)
class Prepared:
    """A session that can begin, or resume."""

    session: Session
    tensors: Mapping[str, Tensor] | None  # of the checkpoint that it resumes from; None: it begins
    described: Mapping[str, Any]  # policy.json


class ChecksTogether:
    """The sessions of all modules: whose turn it is, and what they return together."""

    def __init__(self, place: Location, told: RunModules) -> None:
        self.runs: dict[str, Prepared] = {}
        self.rows: list[dict[str, Any]] = []
        self._place, self._told = place, told
        self._chances: dict[str, tuple[Tensor, Tensor | None]] = {}
        self._environment: Environment | None = None
        self._played: AgentsTogether | None = None

    # ---- whose turn ----

    @contextmanager
    def turn_of(self, name: str) -> Iterator[None]:
        """Within it torch's random generators and threads are those of a module; afterwards they are as before."""
        state = self.runs[name].session.state
        cuda = state.device == "cuda"
        with use_threads(state.threads), torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []):
            if name in self._chances:
                cpu, gpu = self._chances[name]
                torch.set_rng_state(cpu)
                if gpu is not None:
                    torch.cuda.set_rng_state(gpu)
            yield
            self._chances[name] = torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None

    def forget_chances(self) -> None:
        """Before the modules begin, or go back to their checkpoints."""
        self._chances = {}

    def number(self, name: str) -> int:
        """The number, from 1, of the next check of a module that is not settled."""
        session = self.runs[name].session
        every, bound, update = session.checks.every, session.checks.bound, session.state.update
        last = -(-bound // every)
        at = -(-update // every) if update < bound else last
        is_done = session.checks.due(update) and session.state.settled == update and session.state.stopped_by is None
        return max(1, at + is_done)

    def update_of(self, name: str, number: int) -> int:
        """Its update at that check."""
        session = self.runs[name].session
        return int(min(number * session.checks.every, session.checks.bound))

    # ---- playing together ----

    def open_environment(self, held: ExitStack) -> None:
        """Open the environment that the modules are checked in, where one is asked for. Raises BadConfig, SpaceMismatch."""
        session = next(iter(self.runs.values())).session
        spec = session.data.played_in
        if spec is None:
            return
        self._environment = held.enter_context(open_environment(spec.id, spec.kwargs, spec.wrappers))
        if self._environment.agents is None:
            fix = "name an environment of PettingZoo, or leave out --env, and --module-of where there is one agent"
            raise BadConfig(f"{spec.id} is not an environment of several agents", where="--env", fix=fix)
        if any(run.session.data.pieces is not None or run.session.data.trained is not None for run in self.runs.values()):
            fix = "leave out --env, or the pieces"
            raise BadConfig("modules that play between pieces cannot yet be played together", where="--env", fix=fix)
        module_of = self._told.of(tuple(self._environment.agents), self._place.url)
        policies = {name: run.session.learner.policy for name, run in self.runs.items()}
        self._played = AgentsTogether(self._environment, module_of, policies)

    def begin(self) -> None:
        """Read the checks of a run that is resumed, or remove those of one that is replaced."""
        content = whole_file(self._place.join(METRICS)) if self._place.join(METRICS).is_file() else None
        resumed = any(run.tensors is not None for run in self.runs.values())
        for line in (content or b"").split(b"\n") if resumed else ():
            if line.strip():
                self.rows.append(dict(from_json(line)))
        if not resumed:
            self._place.join(METRICS).remove()

    def of(self, name: str) -> Together:
        """What the modules return together at an update of this one: see Checks."""

        def figures(update: int) -> Mapping[str, float]:
            return {} if self._played is None else self._figures(name, update)

        return figures

    def _figures(self, name: str, update: int) -> Mapping[str, float]:
        session = self.runs[name].session
        number = -(-update // session.checks.every)
        row = next((row for row in reversed(self.rows) if row["updates"].get(name) == update and row["check"] == number), None)
        if row is None:
            row = {"check": number, "updates": {each: run.session.state.update for each, run in self.runs.items()}}
            row |= self._measured(number)
            self.rows.append(row)
            content = "".join(json.dumps(one) + "\n" for one in self.rows)
            write_whole(self._place.join(METRICS), content.encode(), folder=self._place)
        return {key: value for key, value in row.items() if isinstance(value, float)}

    def _measured(self, number: int) -> dict[str, Any]:
        """Play all modules as they are kept. Raises StopRequested."""
        config = next(iter(self.runs.values())).session.config
        with ExitStack() as kept:
            for run in self.runs.values():
                if run.session.state.stopped_by is None:
                    kept.enter_context(run.session.kept_policy())
            figures, by_agent = self._returns("eval", config.eval_episodes, Purpose.CHECK, number)
            target = config.until_return
            if target is not None and figures["eval_return_mean"] >= target:
                confirmed, by_agent = self._returns("confirm", config.confirm_episodes, Purpose.CONFIRM, number)
                figures |= confirmed
        return {**figures, "return_by_agent": by_agent}

    def _returns(self, name: str, games: int, purpose: Purpose, number: int) -> tuple[dict[str, float], Mapping[str, Any]]:
        assert self._played is not None, "an environment"
        config = next(iter(self.runs.values())).session.config
        played = self._played.play(games, seed=config.seed, purpose=purpose, round_=number)
        return returns_of(name, played), played.return_by_agent

"""The getters and setters of an episode, one pair per kind of data; buffers resolve the indices.

All getters share their options, and so do all setters: `InfiniteLookbackBuffer.get` and `.set` document them. Errors name the
episode and the kind of data. The singular spellings of older documents do the same for one timestep.
"""

from __future__ import annotations

from typing import Any

from offline_cli.episodes.buffers.indexing import Indices
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.episode_data import EpisodeData
from offline_cli.errors import BadEpisode, EpisodeKeyError

__all__ = ["EpisodeAccessors"]


class EpisodeAccessors(EpisodeData):
    """Getters and setters for observations, actions, rewards, infos and extra model outputs."""

    __slots__ = ()

    # ---- getters ----

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """One observation for an int; several for a list, slice or None (all T+1): a list, or leaves (K, *obs_shape).

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._read("observations", self.observations, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """One action for an int; several for a list, slice or None (all T): a list, or leaves (K, *action_shape).

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._read("actions", self.actions, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: float | None = None) -> Any:
        """One reward for an int; several for a list, slice or None (all T): a list, or an array (K,) float64.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._read("rewards", self.rewards, indices, neg_index_as_lookback, fill)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """One info dict for an int; a list of them for a list, slice or None (all T+1), numpy'ized or not.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._read("infos", self.infos, indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """One output of name `key` for an int; several for a list, slice or None (all T): a list, or leaves (K, ...).

        Raises EpisodeKeyError for an unknown `key`, EpisodeIndexError outside the episode without `fill`.
        """
        return self._read(f"extra model output {key}", self._extra(key), indices, neg_index_as_lookback, fill)

    # ---- setters ----

    def set_observations(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite one observation (int), several (list, slice) or all after the lookback buffer (None).

        Raises EpisodeIndexError where lengths differ, BadEpisode where structure, shape or space do.
        """
        self._write("observations", self.observations, new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite one action (int), several (list, slice) or all after the lookback buffer (None).

        Raises EpisodeIndexError where lengths differ, BadEpisode where structure, shape or space do.
        """
        self._write("actions", self.actions, new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite one reward (int), several (list, slice) or all after the lookback buffer (None).

        Raises EpisodeIndexError where lengths differ, BadEpisode where they are no numbers.
        """
        self._write("rewards", self.rewards, new_data, at_indices, neg_index_as_lookback)

    def set_infos(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite one info dict (int), several (list, slice) or all after the lookback buffer (None).

        Raises EpisodeIndexError where lengths differ.
        """
        self._write("infos", self.infos, new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite one output of name `key` (int), several (list, slice) or all after the lookback buffer (None).

        Raises EpisodeKeyError for an unknown `key`, EpisodeIndexError where lengths differ, BadEpisode where shapes do.
        """
        self._write(f"extra model output {key}", self._extra(key), new_data, at_indices, neg_index_as_lookback)

    # ---- older spellings, one timestep each; options as above ----

    def get_observation(self, index: int, **options: Any) -> Any:
        """`get_observations` of one timestep."""
        return self.get_observations(index, **options)

    def get_action(self, index: int, **options: Any) -> Any:
        """`get_actions` of one timestep."""
        return self.get_actions(index, **options)

    def get_reward(self, index: int, **options: Any) -> Any:
        """`get_rewards` of one timestep."""
        return self.get_rewards(index, **options)

    def get_info(self, index: int, **options: Any) -> Any:
        """`get_infos` of one timestep."""
        return self.get_infos(index, **options)

    def get_extra_model_output(self, key: str, index: int, **options: Any) -> Any:
        """`get_extra_model_outputs` of one timestep."""
        return self.get_extra_model_outputs(key, index, **options)

    def set_observation(self, *, new_value: Any, at_index: int, **options: Any) -> None:
        """`set_observations` of one timestep."""
        self.set_observations(new_data=new_value, at_indices=at_index, **options)

    def set_action(self, *, new_value: Any, at_index: int, **options: Any) -> None:
        """`set_actions` of one timestep."""
        self.set_actions(new_data=new_value, at_indices=at_index, **options)

    def set_reward(self, *, new_value: Any, at_index: int, **options: Any) -> None:
        """`set_rewards` of one timestep."""
        self.set_rewards(new_data=new_value, at_indices=at_index, **options)

    def set_info(self, *, new_value: Any, at_index: int, **options: Any) -> None:
        """`set_infos` of one timestep."""
        self.set_infos(new_data=new_value, at_indices=at_index, **options)

    def set_extra_model_output(self, *, key: str, new_value: Any, at_index: int, **options: Any) -> None:
        """`set_extra_model_outputs` of one timestep."""
        self.set_extra_model_outputs(key=key, new_data=new_value, at_indices=at_index, **options)

    # ---- shared ----

    def _read(
        self,
        name: str,
        buffer: InfiniteLookbackBuffer,
        indices: Indices,
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool = False,
    ) -> Any:
        try:
            return buffer.get(
                indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill, one_hot_discrete=one_hot_discrete
            )
        except BadEpisode as err:
            self._locate(err, name)
            raise

    def _write(
        self, name: str, buffer: InfiniteLookbackBuffer, new_data: Any, at_indices: Indices, neg_index_as_lookback: bool
    ) -> None:
        try:
            buffer.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)
        except BadEpisode as err:
            self._locate(err, name)
            raise

    def _locate(self, err: BadEpisode, name: str) -> None:
        err.where = f"episode {self.id_}, {name}, {err.where}"

    def _extra(self, key: str) -> InfiniteLookbackBuffer:
        try:
            return self.extra_model_outputs[key]
        except KeyError:
            known = ", ".join(map(str, self.extra_model_outputs)) or "there are none"
            raise EpisodeKeyError(
                f"no extra model output {key!r}", where=f"episode {self.id_}", fix=f"one of: {known}"
            ) from None

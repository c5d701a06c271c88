"""RLlib's old-stack recordings: SampleBatch and MultiAgentBatch lines of JSON; any other line is rejected by place.

Every dialect that RLlib wrote over the years is read:

* `files`: plain, gzip and zip files, line by line, and lines in groups that are read together;
* `groups`: a group of lines as rows, independent of what came before: similar lines together, others one by one;
* `rows`, `lines`, `values`: the content of lines as arrays, from their JSON down to lists of numbers, and the rows of one
  policy in one or several lines. From here on lines are processed in their order;
* `ids_and_dtypes`: which episode each row belongs to (rows without `eps_id`, agents that take turns), dtypes of plain lists,
  columns that only repeat others;
* `blocks`: arrays of many lines as batches of fragments, and all of these as a `Source`.

Ids: where the source has one policy and one agent, an episode's id is its `eps_id` as text, its module the policy's name, and
it has no agent id (RLlib keys single agents by their episode). Where it has several, each gets an episode of its own, with the
id `<eps_id>-<policy>-<agent_index>`, the agent index as agent id, and `eps_id` as the id of the multi-agent episode.
"""

from __future__ import annotations

from offline_cli.formats.sample_batch.blocks import SampleBatchSource

__all__ = ["SampleBatchSource"]

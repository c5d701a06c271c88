"""RLlib's recordings, of the new and the old API stack.

* `episodes`: packed episodes in Parquet, one per row;
* `columns`: rows of steps in Parquet;
* `sample_batch`: JSON lines of SampleBatch and MultiAgentBatch; `json_lines` reads their files;
* `input_reader`: objects with the interface of RLlib's `InputReader`, and their `IOContext`;
* `packed`, `pickles`: decode cells that RLlib or Ray pickled into arrays.
"""

"""RLlib's own recordings, of the new stack and of the old one.

* `episodes`: packed episodes in Parquet, one per row;
* `columns`: rows of steps in Parquet;
* `sample_batch`: SampleBatch and MultiAgentBatch lines of JSON, whose files `json_lines` reads;
* `input_reader`: objects in the manner of RLlib's `InputReader`, and the `IOContext` that they are made with;
* `packed`, `pickles`: cells that RLlib or Ray pickled, as arrays.
"""

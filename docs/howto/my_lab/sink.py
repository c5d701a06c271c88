"""One JSON object an episode: its id, length and return."""

import json

from offline_cli.converting.sink import SinkKind, Written
from offline_cli.errors import BadData
from offline_cli.storage.staging import StagedFile


class Jsonl:
    ids_written = frozenset()  # episodes that --resume found

    def __init__(self, target, context):
        self.target, self.context, self.episodes, self.steps = target, context, 0, 0

    def __enter__(self):
        self.target.make_folder()
        self.file = StagedFile(self.target.join("episodes.jsonl"), folder=self.target)
        return self

    def __exit__(self, *error):
        self.file.discard()  # nothing, once it is committed

    def write(self, batch):
        rows = zip(batch.ids, batch.lengths.tolist(), batch.returns.tolist(), strict=True)
        self.file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps

    def rehearse(self, batch): ...  # in a dry run: refuse what `write` would

    def quarantine(self, rejects):
        raise BadData("no place for rows", where=self.target.url, fix="--on-error skip")

    def commit(self, *, assumptions, episodes_lost):
        self.file.commit()
        return Written(self.episodes, self.steps, files=1, bytes=self.file.bytes)


JSONL = SinkKind("jsonl", "ids, lengths and returns as JSON lines", Jsonl, takes={"overwrite"})

"""`offline-cli returns DATASET`: the best returns."""

from dataclasses import dataclass
from typing import Annotated

import typer

from offline_cli.cli import options
from offline_cli.cli.calling import call_and_show
from offline_cli.cli.command import command


@dataclass
class Best:
    returns: list

    def as_dict(self):
        return {"returns": self.returns}


def best_returns(dataset, best=3):
    from offline_cli import open_dataset  # heavy imports wait until the command runs

    with open_dataset(dataset) as opened:
        found = sorted((one for batch in opened.batches() for one in batch.returns.tolist()), reverse=True)
    return Best(found[:best])


@command(most_used=("best",), examples=("offline-cli returns dataset --best 5",), keys=("returns",), takes=(options.common,))
def returns(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Argument(help="The dataset.", metavar="DATASET")],
    best: Annotated[int, options.data(help="How many.", min=1, metavar="N")] = 3,
) -> None:
    """Show the best returns of a dataset."""
    call_and_show(ctx, best_returns)

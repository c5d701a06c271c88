"""How fast is learning from frames on the GPU? Rival: a bare PyTorch loop over the same network, frames on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.cuda_training import bare_steps, card, card_name, our_steps, rate_of
from benchmarks.harness import Missing, Row, missing, paired_rates

BATCH, HIDDEN, HELD, COUNT = 512, (512,), 20_000, 100
FRAMES = spaces.Box(0, 255, (84, 84, 4), np.uint8)
QUESTION = f"samples per second on the GPU, CNN on 84x84x4 uint8 frames, batch {BATCH}"


def rows() -> list[Row]:
    try:
        device = card()
    except Missing as error:
        return [missing(QUESTION, error, unit="samples/s")]
    shape: dict[str, Any] = {"batch": BATCH, "held": HELD, "precision": "bf16", "device": device}
    return [
        paired_rates(
            QUESTION,
            unit="samples/s",
            ours=rate_of(our_steps(FRAMES, HIDDEN, **shape), COUNT, device, amount=BATCH),
            rival=rate_of(bare_steps(FRAMES, HIDDEN, **shape), COUNT, device, amount=BATCH),
            rival_name=f"a bare PyTorch loop ({card_name()})",
        )
    ]

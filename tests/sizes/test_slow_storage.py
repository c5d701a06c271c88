"""A thousand small tables behind a storage that takes 50 ms for each answer: most of the waiting is done at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from shop_server import PLUGIN, shop_server

from offline_cli import convert
from offline_cli.files import providers

FILES, SECONDS = 1000, 0.05
MAPPING = '[columns]\neps_id = "eps_id"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\nterminateds = "done"\n'


@pytest.mark.nightly
def test_a_thousand_small_tables_are_waited_for_several_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    monkeypatch.setattr(providers, "_known", dict(providers._known))
    (tmp_path / "mapping.toml").write_text(MAPPING)

    with shop_server() as shop:
        monkeypatch.setenv("SHOP_URL", shop.address)
        for i in range(FILES):
            rows = "".join(f"e{i},{t},{t}.5,0.25,{t % 2},1.0,{int(t == 19)}\n" for t in range(20))
            shop.files[f"shelf/in/{i:04}.csv"] = f"eps_id,t,x,y,a,r,done\n{rows}".encode()
        shop.seconds = SECONDS
        result = convert("shop://shelf/in", tmp_path / "D", mapping=tmp_path / "mapping.toml")
        assert result.episodes == FILES
        assert max(Counter(path for method, path in shop.asked if path.endswith(".csv")).values()) == 1
        assert shop.most_at_once >= 4

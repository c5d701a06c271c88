"""Names, ids, units and run names that somebody hostile chose: they are text on the page, and nothing of them runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from gymnasium import spaces
from html_pages import Page
from rides import Made, Run, episode

from offline_cli import SingleAgentEpisode, open_dataset, report

SET = "document.documentElement.setAttribute('data-run','1')"
HOSTILE = (
    f"</script><script>{SET}</script>",
    f'"><img src=x onerror="{SET}">',
    f"<svg onload={SET}>",
    f'<a href="javascript:{SET}">link</a>',
    f"{{{{ 7*7 }}}} %{{y}} <b>bold</b> javascript:{SET}",
    "line\nbreak \x1b[31m \u202e \u2028 <!-- ]]>",
)


def hostile_page(made: Made, run: Run, out: Path, *, short: bool = False) -> Path:
    """A page with such texts in every place: ids, agents, keys and names of columns, units, categories, runs, folders."""
    both = []
    for place in ("one<b>", "two'\"&"):
        each = []
        for number, text in enumerate(HOSTILE):
            plain = episode(f"{place}{text}", number, agent_id=f"agent {text}", module_id=f"module {text}")
            each.append(
                SingleAgentEpisode(
                    id_=plain.id_,
                    agent_id=f"agent {text}",
                    module_id=f"module {text}",
                    observations=[{f"key{one}": row for one in HOSTILE} for row in plain.get_observations()],
                    actions=[number % 3] * 120,
                    rewards=list(plain.get_rewards()),
                    infos=[{"note": text}] * 121,
                    terminated=True,
                    observation_space=spaces.Dict({f"key{one}": plain.observation_space for one in HOSTILE}),
                    action_space=spaces.Discrete(3),
                    len_lookback_buffer=0,
                )
            )
        meanings = {
            "actions": [{"name": HOSTILE[0], "categories": list(HOSTILE[1:4]), "unit": HOSTILE[2]}],
            f"obs.key{HOSTILE[0]}": [{"name": text, "unit": text} for text in HOSTILE[:3]],
        }
        both.append(made(place, each, meanings=meanings))
    runs = [run(text.replace("/", "\\"), [2, 1], note=text) for text in HOSTILE]
    report(both, out, runs=runs, short=short)
    return out


@pytest.mark.parametrize("short", [False, True])
def test_hostile_texts_stay_text(short: bool, made: Made, run: Run, tmp_path: Path) -> None:
    found = Page(hostile_page(made, run, tmp_path / "page.html", short=short).read_text(encoding="utf-8"))
    assert not found.harmful()
    assert len(found.scripts) == (0 if short else 3)
    assert "<svg onload=" in found.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u2028\u202e]", found.text)


def test_hostile_texts_stay_text_in_a_notebook(made: Made) -> None:
    spaced = episode("a", 1)
    place = made('"><img src=x onerror=alert(1)>', [spaced])
    shown = Page(open_dataset(place)._repr_html_())
    assert not shown.harmful()
    assert {tag for tag, _ in shown.elements} == {"table", "caption", "tr", "th", "td"}


@pytest.mark.nightly
def test_no_script_of_hostile_texts_runs_in_a_browser(made: Made, run: Run, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "this test needs Chromium"
    page = hostile_page(made, run, tmp_path / "page.html")

    def dumped(file: Path) -> str:
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1400,9000",
        ]
        done = subprocess.run(  # virtual time: all timers and frames have run when the page is dumped
            [browser, *flags, "--virtual-time-budget=20000", "--dump-dom", file.as_uri()],
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stdout

    shown = dumped(page)
    elements = Page(shown)
    assert "main-svg" in shown, "plots are drawn"
    assert 'data-run="1"' not in shown
    assert not [one for one in elements.harmful() if one[0] in ("img", "a", "iframe", "b", "script")]
    control = tmp_path / "control.html"
    control.write_text(f"<html><script>{SET}</script></html>", encoding="utf-8")
    assert 'data-run="1"' in dumped(control), "what this test looks for would be found"

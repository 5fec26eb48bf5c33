"""Every code block of the README runs, and its numbers are the committed ones."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)


def test_blocks_are_of_a_kind_that_is_run_here():
    assert README.count("```") == 2 * len(BLOCKS) > 0
    assert {language for language, _ in BLOCKS} == {"python", "sh"}


def test_python_blocks_run_in_order(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names: dict = {}
    for number, (language, text) in enumerate(BLOCKS):
        if language == "python":
            exec(compile(text, f"README.md, block {number}", "exec"), names)
    said = capsys.readouterr().out
    exact = -640.380541  # quoted above the block
    assert float(said.split()[0]) == pytest.approx(exact, abs=1.5)
    assert names["log_norm"] == pytest.approx(-999.592394035556, abs=2.1e-5)
    assert names["step"].ess <= 2000.0
    best = names["levels"][names["log_likelihoods"].argmax()]
    assert 25.0 <= best <= 50.0  # maximum likelihood: 38.3
    assert abs(names["heading"]) < 0.5


def commands():
    shell = [text for language, text in BLOCKS if language == "sh"]
    return [line for text in shell for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("line", commands())
def test_shell_lines_run(line, tmp_path):
    words = shlex.split(line)
    assert words[0] == "python"
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    run = [sys.executable, *words[1:]]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_linked_files_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_ten_lines_are_ten_lines():
    model = next(text for language, text in BLOCKS if language == "python" and "class Nile" in text)
    body = [line for line in model.splitlines() if line.strip() and not line.startswith("import")]
    assert len(body) <= 10


def test_the_captions_errors_are_the_demos():
    from apps import track_uwb

    run = track_uwb.load()
    model = track_uwb.fitted_model(run)
    caption = README[README.index("docs/images/track_uwb.png") :].split("\n\n")[1]
    drift, held = map(float, re.findall(r"(\d\.\d+) m\b", caption))
    reckoned = track_uwb.errors(model.dead_reckoning(run.inputs, track_uwb.START), run)[0]
    followed = track_uwb.errors(track_uwb.follow(track_uwb.make_filter(model), run).mean, run)[0]
    assert reckoned == pytest.approx(drift, abs=0.005)
    assert held - 0.01 < followed < held


def test_the_table_is_the_committed_benchmarks():
    from tools.readme_table import TABLES, rendered

    for name, (_, path) in TABLES.items():
        result = json.loads(path.read_text(encoding="utf-8"))
        assert rendered(README, name, result) == README, "run python -m tools.readme_table"
    speed = json.loads(TABLES["lse"][1].read_text(encoding="utf-8"))["speed"]
    cell = max(row["ns_per_element"] for row in speed if row["spread"] == "ordinary")
    assert f"{cell:.2f}" in README


def test_a_table_without_its_markers_is_refused():
    from tools.readme_table import rendered

    begin, end = "<!-- lse table: begin -->\n", "<!-- lse table: end -->\n"
    for text in ("", begin, end + begin, begin + end + end):
        with pytest.raises(ValueError, match="markers"):
            rendered(text, "lse", {})

import pathlib
import re
import shutil

import matplotlib
import pytest
from conftest import HERE, MODELS, draw_folder

matplotlib.use("agg")

PAGE = HERE.parents[2] / "docs" / "python.md"


@pytest.mark.filterwarnings("ignore:no usable onnxruntime")
def test_the_code_of_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    draw_folder(tmp_path / "pictures", 3, 2)
    draw_folder(tmp_path / "queries", 3, 1, first=10)
    shutil.copy(MODELS / "convolutional.onnx", tmp_path / "encoder.onnx")
    shutil.copy(MODELS / "encoder.toml", tmp_path / "encoder.toml")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert len(blocks) == 12
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["certificate"].certified and len(names["frame"]) == 3
    assert names["answer"].certified and names["answer"].label == "label 1"
    assert (names["answers"].recall(), len(names["answers"])) == (1.0, 3)
    assert (names["alike"].queries, names["alike"].same_item) == (3, 3)
    assert (tmp_path / "merged" / "certificates.parquet").read_bytes() == (
        tmp_path / "run" / "certificates.parquet"
    ).read_bytes()
    assert pathlib.Path("recall.svg").stat().st_size > 1000

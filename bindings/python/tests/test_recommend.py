import json
import os
import subprocess

import pytest
import retrievalguard as rg

FEW = {"queries": 8, "copies": 30, "gallery_copies": 2, "samples": 200}


def test_every_setting_is_tried_and_one_is_recommended(encoder, folders):
    found = rg.recommend(folders[0], encoder, sigma=[0.2, 0.1, 0.2], **FEW, progress=False)
    assert (found.pictures, found.classes, found.queries) == (12, 4, 8)
    tried = [(setting.sigma, setting.retriever) for setting in found.settings]
    assert tried == [(sigma, name) for sigma in (0.1, 0.2) for name in ("mean", "vote", "pairwise")]
    assert found.choice in found.settings and "certified radius" in found.reason
    assert found.choice.certificate in rg.ALL
    for setting in found.settings:
        assert 0 <= setting.recall <= 1 and setting.average_radius >= 0 and setting.passes > 0
        assert [share.radius for share in setting.certified] == pytest.approx([0.05, 0.1, 0.2])
        assert all(0 <= share.lower <= share.estimate <= share.upper <= 1 for share in setting.certified)


def test_the_numbers_are_those_of_the_program(encoder, model, folders):
    program = os.environ.get("RETRIEVALGUARD_PROGRAM")
    if not program:
        pytest.skip("RETRIEVALGUARD_PROGRAM names no program")
    words = [program, "recommend", folders[0], "--model", model, "--engine", "rten", "--sigma", "0.1,0.25", "--radius", "0.1"]
    words += [word for name, value in FEW.items() for word in (f"--{name.replace('_', '-')}", value)]
    told = subprocess.run([*map(str, words), "--json"], capture_output=True, text=True, check=True)
    wanted = json.loads(told.stdout)
    found = rg.recommend(folders[0], encoder, sigma=(0.1, 0.25), radius=0.1, **FEW, progress=False)
    for name in ("pictures", "classes", "queries", "plain_recall", "recommended", "reason"):
        assert getattr(found, name) == wanted[name]
    for setting, row in zip(found.settings, wanted["settings"], strict=True):
        assert [share._asdict() for share in setting.certified] == row["certified"]
        # Only the time that it took is another.
        for name in ("sigma", "retriever", "recall", "average_radius", "passes", "target"):
            assert getattr(setting, name) == row[name]


def test_what_means_nothing_is_refused_by_name(encoder, folders):
    for change, message in [
        ({"sigma": []}, "no noise level"),
        ({"sigma": [0.1, -1]}, "sigma is -1"),
        ({"radius": 0}, "radius is 0"),
        ({"recall_loss": 2}, "may be lost is 2, wanted a number from 0 to 1"),
        ({"queries": 0}, "queries is 0"),
        ({"copies": 0}, "copies is 0"),
        ({"samples": 0}, "sample count is 0"),
        ({"limit": 3}, "have the label"),
        ({"format": "tarot"}, "tarot"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            rg.recommend(**{"pictures": folders[0], "encoder": encoder, "sigma": 0.1, "progress": False, **FEW, **change})
    with pytest.raises(rg.InputError, match="encoder is str, wanted an Encoder"):
        rg.recommend(folders[0], "encoder.onnx")


def test_an_exception_of_the_progress_function_stops_it(encoder, folders):
    class Enough(Exception):
        pass

    def progress(done, total):
        raise Enough

    with pytest.raises(Enough):
        rg.recommend(folders[0], encoder, 0.1, **FEW, progress=progress)


def test_a_broken_picture_is_named(encoder, folders, tmp_path):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in (0, 1):
            (tmp_path / label / f"{number}.png").write_bytes((folders[0] / "label 0" / f"{number}.png").read_bytes())
    (tmp_path / "b" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(rg.InputError, match="2.png"):
        rg.recommend(tmp_path, encoder, 0.1, **FEW, progress=False)
    with pytest.warns(UserWarning, match="skipped: b/2.png: "):
        found = rg.recommend(tmp_path, encoder, 0.1, **FEW, skip_broken=True, progress=False)
    assert found.pictures == 4

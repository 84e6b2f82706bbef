import hashlib
import json
import os
import pickle
import subprocess

import pytest
import retrievalguard as rg

SMALL = {"samples": 300, "pilot": 60, "progress": False}
TABLE = "certificates.parquet"


@pytest.fixture(scope="module")
def whole(encoder, folders, gallery, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    rg.certify_pictures(folders[1], encoder, gallery, 0.1, out, certificate="all", **SMALL)
    return out


@pytest.fixture(params=[None, 70], ids=["whole queries", "chunks"])
def run(request, encoder, folders, gallery, tmp_path):
    options = {"certificate": "all", "chunk": request.param, **SMALL}
    return rg.share_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "run", **options)


def test_shares_and_single_tasks_give_the_bytes_of_one_run(run, whole, tmp_path):
    assert run.unfinished() == list(range(run.tasks)) and run.tasks in (12, 12 * 6)
    with pytest.raises(rg.InputError, match=f"{run.tasks} of {run.tasks} parts .* are missing"):
        run.merge(tmp_path / "out", progress=False)
    worker = rg.Worker(run)
    for number in (run.tasks - 1, 3, 3):
        worker.carry_out(number)
    assert len(run.unfinished()) == run.tasks - 2
    run.work(1, 3, progress=False)
    told = []
    run.work(threads=1, progress=lambda done, total: told.append((done, total)))
    assert run.unfinished() == [] and told[-1] == (run.tasks, run.tasks)
    found = run.merge(tmp_path / "out", progress=False)
    assert found == rg.read_certificates(whole)
    assert (tmp_path / "out" / TABLE).read_bytes() == (whole / TABLE).read_bytes()
    assert (tmp_path / "out" / "run.json").read_bytes() == (whole / "run.json").read_bytes()


def test_a_run_travels_by_its_address(run, tmp_path, monkeypatch):
    there = pickle.loads(pickle.dumps(run))
    assert there.address == run.address and repr(run) == f"Run({run.address!r}, {run.tasks} tasks)"
    monkeypatch.chdir(tmp_path)
    assert rg.Run("run").address == run.address and rg.Run(f"file://{run.address}").tasks == run.tasks


def test_the_program_takes_up_the_run_and_the_package_the_programs_parts(run, whole, tmp_path):
    program = os.environ.get("RETRIEVALGUARD_PROGRAM")
    if not program:
        pytest.skip("RETRIEVALGUARD_PROGRAM names no program")
    call = {"check": True, "capture_output": True}
    subprocess.run([program, "worker", "--run", run.address, "--index", "0", "--of", "2"], **call)
    run.work(progress=False)
    run.merge(tmp_path / "a", progress=False)
    subprocess.run([program, "merge", "--run", run.address, "--out", tmp_path / "b"], **call)
    for out in ("a", "b"):
        assert (tmp_path / out / TABLE).read_bytes() == (whole / TABLE).read_bytes()
    names = [{path.name for path in (tmp_path / out).iterdir()} for out in ("a", "b")]
    assert names[0] == names[1]


def sealed(value):
    """The text of a JSON object with the digest of its other fields."""
    fields = {name: field for name, field in value.items() if name != "sha256"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**fields, "sha256": hashlib.sha256(canonical.encode()).hexdigest()})


def test_a_manifest_that_contradicts_itself_is_refused(run, encoder, folders, gallery, tmp_path):
    place = tmp_path / "run" / "shared.json"
    whole = json.loads(place.read_text())

    def edited(change, again):
        copy = json.loads(json.dumps(whole))
        change(copy)
        place.write_text(sealed(copy) if again else json.dumps(copy))

    def refused(message):
        for call in (run.unfinished, lambda: rg.Worker(run), lambda: run.merge(tmp_path / "out", progress=False)):
            with pytest.raises(rg.InputError, match=message):
                call()

    for change, message in [
        (lambda run: run["run"].update(sigma=-1.0), "description of the run"),
        (lambda run: run["run"].update(certificates=[]), "description of the run"),
        (lambda run: run["run"].update(excluded_rows="0" * 64), "other rows that queries must not see"),
        (lambda run: run["queries"][0].update(excluded=[0, 1]), "other rows that queries must not see"),
        (lambda run: run["queries"][0].update(label="nothing"), "other queries than its description says"),
        (lambda run: run["queries"][0].update(identity="nobody"), "other queries than its description says"),
        (lambda run: run["queries"][0].update(crop=[0, 0, 5, 5]), "other queries than its description says"),
        (lambda run: run.update(gallery=[]), "three or four files of a gallery"),
        (lambda run: run["run"].update(tool="0.0.1"), "it is of 0.0.1"),
    ]:
        edited(change, again=False)
        refused("failed verification")
        edited(change, again=True)
        refused(message)
    edited(lambda run: run.update(format=7), again=True)
    refused("it is of format 7")

    # A change that is made everywhere is another run, but its gallery is still of this one.
    edited(lambda run: run["run"].update(sigma=1.0), again=True)
    with pytest.raises(rg.InputError, match="was smoothed with sigma 0.1"):
        run.work(progress=False)
        run.merge(tmp_path / "out", progress=False)
    edited(lambda run: run["run"].update(model="0" * 64), again=True)
    with pytest.raises(rg.InputError, match="other model than its description says"):
        rg.Worker(run)


def test_the_results_of_another_run_are_not_overwritten(run, encoder, folders, gallery, tmp_path):
    rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "other", **{**SMALL, "samples": 50})
    before = (tmp_path / "other" / TABLE).read_bytes()
    run.work(progress=False)
    with pytest.raises(rg.InputError, match="other` holds the results of another run"):
        run.merge(tmp_path / "other", progress=False)
    assert (tmp_path / "other" / TABLE).read_bytes() == before
    for _ in range(2):
        run.merge(tmp_path / "own", progress=False)


def test_a_store_that_does_not_answer_is_no_fault_of_the_asker(monkeypatch):
    settings = {"AWS_ENDPOINT": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in {**settings, **keys}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(rg.FileError, match="shared.json.* of run `s3://bucket/run` cannot be read"):
        rg.Run("s3://bucket/run")


def test_what_cannot_be_is_refused_by_name(run, encoder, folders, gallery, tmp_path):
    def share(**change):
        options = {"pictures": folders[1], "encoder": encoder, "gallery": gallery, "sigma": 0.1, "run": tmp_path / "new"}
        rg.share_pictures(**{**options, **SMALL, **change})

    for change, message in [
        ({"run": run.address}, "holds another run already"),
        ({"run": "ftp://somewhere/run"}, "`ftp://somewhere/run` cannot hold a run"),
        ({"chunk": 0}, "chunk is 0"),
        ({"chunk": 10, "target_radius": 0.1}, "wanted no --chunk beside it"),
        ({"sigma": 0.2}, "was smoothed with sigma 0.1"),
        ({"encoder": "encoder.onnx"}, "encoder is str"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            share(**change)
    for call, message in [
        (lambda: rg.Run(tmp_path / "nowhere"), "has no shared.json"),
        (lambda: rg.Worker(tmp_path / "nowhere"), "has no shared.json"),
        (lambda: rg.Worker(run, "onnxruntime"), "needs engine rten"),
        (lambda: rg.Worker(run, "magic"), "`magic`"),
        (lambda: rg.Worker(run).carry_out(run.tasks), f"has no task {run.tasks}, wanted one below {run.tasks}"),
        (lambda: rg.Worker(run).carry_out(-1), "number is -1"),
        (lambda: run.work(3, 3), "share 3 of 3 was asked for"),
        (lambda: run.work(1), "index and of were not given together"),
        (lambda: run.work(threads=0), "threads is 0"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            call()

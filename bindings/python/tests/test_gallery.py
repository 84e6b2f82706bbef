import pickle

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import retrievalguard as rg


@pytest.fixture
def gallery():
    rng = np.random.default_rng(1)
    labels = [f"label {row % 7}" for row in range(50)]
    return rg.Gallery(rng.normal(size=(50, 6)), labels, [f"picture {row}.png" for row in range(50)])


def test_keeps_vectors_labels_and_identities(gallery):
    assert len(gallery) == 50 and gallery.dimension == 6 and gallery.metric == "euclidean"
    assert gallery.vectors.dtype == np.float32 and gallery.vectors.shape == (50, 6)
    assert gallery.labels[8] == "label 1" and gallery.identities[8] == "picture 8.png"
    assert gallery.rows_of("picture 3.png") == [3] and gallery.rows_of("nobody") == []


def test_nearest_equals_a_double_loop(gallery):
    queries = np.random.default_rng(2).normal(size=(9, 6))
    rows, distances = gallery.nearest(queries, k=4)
    measured = np.sqrt(((queries[:, None] - gallery.vectors.astype(np.float64)) ** 2).sum(axis=2))
    wanted = np.argsort(measured, axis=1, kind="stable")[:, :4]
    assert (rows == wanted).all() and rows.dtype == np.int64
    assert np.allclose(distances, np.take_along_axis(measured, wanted, axis=1), rtol=1e-12)
    one, _ = gallery.nearest(queries[0], k=99)
    assert one.shape == (50,)


def test_cosine_scales_the_stored_vectors():
    gallery = rg.Gallery([[3, 4], [0, 2]], [0, 1], metric="cosine")
    assert np.allclose(np.linalg.norm(gallery.vectors, axis=1), 1) and gallery.labels.tolist() == ["0", "1"]


def test_a_written_gallery_reads_back(gallery, tmp_path):
    gallery.write(tmp_path / "g", norm_bound=5.0)
    again = rg.Gallery.read(tmp_path / "g")
    assert (again.vectors == gallery.vectors).all() and (again.labels == gallery.labels).all()
    assert again.sigma is None and again.samples is None
    # It now says its norm bound, and queries with another are refused.
    samples = np.zeros((10, 6))
    with pytest.raises(rg.InputError, match="norm bound"):
        rg.certify(samples, again, "label 1", pilot=samples.copy(), sigma=0.1)
    again.write(tmp_path / "h")
    with pytest.raises(rg.InputError, match="norm bound"):
        rg.certify(samples, rg.Gallery.read(tmp_path / "h"), "label 1", pilot=samples.copy(), sigma=0.1)


def test_tables_come_back_as_they_went(gallery):
    tables = [gallery.to_pandas(), gallery.to_polars(), gallery.to_arrow()]
    assert [type(table) for table in tables] == [pandas.DataFrame, polars.DataFrame, pyarrow.Table]
    assert tables[1].schema["vector"] == polars.Array(polars.Float32, 6)
    assert tables[2].schema.field("vector").type == pyarrow.list_(pyarrow.float32(), 6)
    for table in tables:
        again = rg.Gallery.from_table(table)
        assert (again.vectors == gallery.vectors).all()
        assert (again.labels == gallery.labels).all() and (again.identities == gallery.identities).all()


def test_a_table_without_the_columns_is_refused():
    with pytest.raises(rg.InputError, match="no column `vector`, it has label"):
        rg.Gallery.from_table(pandas.DataFrame({"label": ["a"]}))
    with pytest.raises(rg.InputError, match="differ in length"):
        rg.Gallery.from_table(pandas.DataFrame({"label": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}))


def test_pickles(gallery):
    again = pickle.loads(pickle.dumps(gallery))
    assert (again.vectors == gallery.vectors).all() and (again.identities == gallery.identities).all()
    cosine = rg.Gallery([[3, 4]], ["a"], metric="cosine")
    assert (pickle.loads(pickle.dumps(cosine)).vectors == cosine.vectors).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: rg.Gallery([[1.0, np.nan]], ["a"]), "component 1 of gallery item `0` \\(row 0\\) is NaN"),
        (lambda: rg.Gallery([[np.inf, 0]], ["a"], ["x.png"]), "gallery item `x.png` \\(row 0\\) is inf"),
        (lambda: rg.Gallery([1.0, 2.0], ["a"]), "gallery vectors have shape \\(2,\\), wanted two dimensions"),
        (lambda: rg.Gallery([[1.0], [2.0, 3.0]], ["a", "b"]), "gallery vectors are not an array"),
        (lambda: rg.Gallery([[1.0], [2.0]], ["a"]), "gallery has 1 labels, wanted one for each of its 2 items"),
        (lambda: rg.Gallery(np.empty((0, 3)), []), "gallery has no items"),
        (lambda: rg.Gallery(np.empty((3, 0)), list("abc")), "gallery dimension is 0"),
        (lambda: rg.Gallery([[1.0]], [1.5]), "label is 1.5"),
        (lambda: rg.Gallery([[1.0]], "a"), "a single string 'a'"),
        (lambda: rg.Gallery([[1.0]], ["a"], metric="manhattan"), "metric is `manhattan`"),
        (lambda: rg.Gallery([[0.0]], ["a"], metric="cosine"), "is the zero vector"),
        (lambda: rg.Gallery([[1j]], ["a"]), "complex128 values, wanted real numbers"),
        (lambda: rg.Gallery([[1.0]], ["a"]).nearest([[1.0, 2.0]]), "wanted rows of the gallery's dimension 1"),
        (lambda: rg.Gallery([[1.0]], ["a"]).nearest([[np.nan]]), "component 0 of query 0 is NaN"),
        (lambda: rg.Gallery([[1.0]], ["a"]).nearest([[1.0]], k=0), "number of neighbours is 0"),
    ],
)
def test_hostile_galleries_are_refused_by_name(make, message):
    with pytest.raises(rg.InputError, match=message):
        make()


def test_missing_and_broken_directories_say_what_is_wrong(tmp_path):
    with pytest.raises(rg.RetrievalGuardError, match="no manifest.json|cannot be read"):
        rg.Gallery.read(tmp_path / "nowhere")
    gallery = rg.Gallery([[1.0]], ["a"])
    gallery.write(tmp_path / "g")
    (tmp_path / "g" / "vectors.npy").write_bytes(b"")
    with pytest.raises(rg.InputError, match="its manifest says"):
        rg.Gallery.read(tmp_path / "g")
    with pytest.raises(OSError):
        gallery.write("/proc/nowhere/g")

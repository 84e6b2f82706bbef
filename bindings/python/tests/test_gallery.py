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


@pytest.fixture
def with_views():
    rng = np.random.default_rng(3)
    identities = [f"picture {row // 3}.png" for row in range(30)]
    labels = [f"label {row // 3 % 4}" for row in range(30)]
    return rg.Gallery(rng.normal(size=(30, 5)), labels, identities, views=["as is", "left", "right"])


def test_neighbours_are_items_by_their_nearest_views(with_views):
    assert (len(with_views), with_views.items, with_views.views) == (30, 10, ("as is", "left", "right"))
    assert "10 items with 3 views" in repr(with_views)
    queries = np.random.default_rng(4).normal(size=(6, 5))
    measured = np.sqrt(((queries[:, None] - with_views.vectors.astype(np.float64)) ** 2).sum(axis=2))
    rows, distances = with_views.nearest(queries, k=4)
    for query, found in enumerate(rows):
        of_items = measured[query].reshape(10, 3).min(axis=1)
        wanted = np.argsort(of_items, kind="stable")[:4]
        assert (found // 3 == wanted).all() and np.allclose(distances[query], of_items[wanted], rtol=1e-12)
    every, _ = with_views.nearest(queries[0], k=99)
    assert sorted(every // 3) == list(range(10))
    assert with_views.rows_of("picture 2.png") == [6, 7, 8]


def test_views_travel_with_tables_and_pickles(with_views):
    for table in (with_views.to_pandas(), with_views.to_polars(), with_views.to_arrow()):
        back = rg.Gallery.from_table(table)
        assert back.views == with_views.views and back.items == 10
        assert (back.vectors == with_views.vectors).all()
    assert pickle.loads(pickle.dumps(with_views)).views == with_views.views
    shuffled = with_views.to_pandas().iloc[::-1]
    with pytest.raises(rg.InputError, match="row 1 of the gallery|for each item in turn|wanted view"):
        rg.Gallery.from_table(shuffled.assign(identity=shuffled.identity.to_numpy()[np.argsort(np.arange(30) % 3)]))


def test_views_that_do_not_fit_are_refused(with_views, tmp_path):
    with pytest.raises(rg.InputError, match="wanted a multiple of 4"):
        rg.Gallery(with_views.vectors, ["a"] * 30, ["b"] * 30, views=["1", "2", "3", "4"])
    with pytest.raises(rg.InputError, match="called `1`"):
        rg.Gallery(with_views.vectors, ["a"] * 30, views=["1", "1"])
    # How these views were made is not known, so a directory could not say it.
    with pytest.raises(rg.InputError, match="the views as is, left, right"):
        with_views.write(tmp_path / "g")


def test_a_hidden_row_hides_every_view_of_its_item():
    vectors = [[-0.2, 0.9], [0.85, 0.0], [-1.0, 0.0], [0.0, -1.0], [9.0, 9.0], [8.0, 8.0]]
    names = ["cat-1", "cat-1", "dog-1", "dog-1", "cat-2", "cat-2"]
    gallery = rg.Gallery(vectors, [name[:3] for name in names], names, views=["as is", "mirrored"])
    rng = np.random.default_rng(5)
    pilot, samples = (np.array([0.85, 0.0]) + rng.uniform(-0.05, 0.05, size=(count, 2)) for count in (100, 600))
    seen = rg.certify(samples, gallery, "cat", pilot=pilot, sigma=0.25)
    assert seen.verdict is rg.Verdict.CERTIFIED and (seen.retrieved, seen.retrieved_view) == ("cat-1", "mirrored")
    assert seen.nearest_wrong_view in gallery.views
    for hidden in ("cat-1", 0, 1):
        assert rg.certify(samples, gallery, "cat", pilot=pilot, sigma=0.25, exclude=hidden).verdict is rg.Verdict.MISRETRIEVED

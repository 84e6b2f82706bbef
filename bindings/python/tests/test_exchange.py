"""Galleries from and to faiss, Arrow and Lance, and how often their searches agree with exact search."""

import json
import subprocess
import sys

import faiss
import numpy as np
import pyarrow
import pytest
import retrievalguard as rg


@pytest.fixture(scope="module")
def unit():
    vectors = np.random.default_rng(5).normal(size=(600, 12))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("f4")


@pytest.fixture(scope="module")
def labels():
    return [f"label {row % 9}" for row in range(600)]


def same(one, other):
    return (
        (one.vectors == other.vectors).all()
        and one.labels.tolist() == other.labels.tolist()
        and one.identities.tolist() == other.identities.tolist()
        and one.metric == other.metric
    )


@pytest.mark.parametrize("metric, kind", [("euclidean", faiss.IndexFlatL2), ("cosine", faiss.IndexFlatIP)])
def test_a_flat_index_comes_back_as_it_went(unit, labels, metric, kind, tmp_path):
    gallery = rg.Gallery(3 * unit, labels, [f"{row}.png" for row in range(600)], metric=metric)
    index = gallery.to_faiss(tmp_path / "g.faiss")
    assert type(index) is kind and type(faiss.read_index(str(tmp_path / "g.faiss"))) is kind
    assert same(rg.Gallery.from_faiss(tmp_path / "g.faiss"), gallery)
    assert same(rg.Gallery.from_faiss(index, labels, gallery.identities), gallery)
    # Both find the same.
    queries = np.random.default_rng(6).normal(size=(50, 12)).astype("f4")
    assert (index.search(queries, 3)[1] == gallery.nearest(queries, k=3)[0]).all()


def test_views_travel_beside_an_index(tmp_path):
    rows = np.random.default_rng(7).normal(size=(6, 4))
    gallery = rg.Gallery(rows, list("aabbcc"), list("112233"), views=["as is", "mirrored"])
    gallery.to_faiss(tmp_path / "g.faiss")
    back = rg.Gallery.from_faiss(tmp_path / "g.faiss")
    assert same(back, gallery) and (back.items, back.views) == (3, gallery.views)


def test_ids_of_an_index_name_its_vectors(unit, labels):
    index = faiss.IndexIDMap2(faiss.IndexFlatL2(12))
    index.add_with_ids(unit, np.arange(600) + 5000)
    by_id = {5000 + row: label for row, label in enumerate(labels)}
    gallery = rg.Gallery.from_faiss(index, by_id)
    assert gallery.identities[:2].tolist() == ["5000", "5001"] and gallery.labels.tolist() == labels
    by_id.pop(5003)
    with pytest.raises(rg.InputError, match="a vector with id 5003, for which there is no label"):
        rg.Gallery.from_faiss(index, by_id)


def approximate(vectors, metric=faiss.METRIC_INNER_PRODUCT):
    index = faiss.IndexIVFFlat(faiss.IndexFlat(12, metric), 12, 30, metric)
    index.train(vectors)
    index.add(vectors)
    return index


def test_other_indexes_give_their_vectors_and_say_what_is_certified(unit, labels):
    graph = faiss.IndexHNSWFlat(12, 16, faiss.METRIC_INNER_PRODUCT)
    graph.add(unit)
    lists = approximate(unit)
    for index in (graph, lists):
        with pytest.warns(UserWarning, match="searches approximately: certificates are about exact search"):
            gallery = rg.Gallery.from_faiss(index, labels)
        assert (gallery.vectors == unit).all() and gallery.metric == "cosine"
    with pytest.raises(RuntimeError):  # the caller's index has no direct map of ours
        lists.reconstruct(0)
    codes = faiss.IndexScalarQuantizer(12, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2)
    codes.train(unit)
    codes.add(unit)
    with pytest.warns(UserWarning, match="keeps vectors as codes: the gallery has the decoded ones"):
        gallery = rg.Gallery.from_faiss(codes, labels)
    assert (gallery.vectors != unit).any() and np.abs(gallery.vectors - unit).max() < 0.01
    assert (gallery.vectors == codes.reconstruct_n(0, 600)).all()


def test_an_inner_product_of_unequal_norms_is_another_retriever(unit, labels):
    stretched = unit * np.linspace(0.5, 2, 600, dtype="f4")[:, None]
    index = faiss.IndexFlatIP(12)
    index.add(stretched)
    with pytest.raises(rg.InputError, match="by inner product, and its vectors have norms from 0.5 to 2: the largest product is"):
        rg.Gallery.from_faiss(index, labels)
    for metric in ("euclidean", "cosine"):
        assert rg.Gallery.from_faiss(index, labels, metric=metric).metric == metric
    with pytest.raises(rg.InputError, match="so an index by inner product answers otherwise"):
        rg.Gallery(stretched, labels).to_faiss(metric="ip")
    # Of one norm that is not quite 1, the order is the same, and the vectors stay as they are.
    index = faiss.IndexFlatIP(12)
    nearly = unit * np.float32(1 + 1e-6)
    index.add(nearly)
    gallery = rg.Gallery.from_faiss(index, labels)
    assert gallery.metric == "euclidean" and (gallery.vectors == nearly).all()


def indexed(index, vectors):
    if not index.is_trained:
        index.train(vectors)
    index.add(vectors)
    return index


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda unit: indexed(faiss.IndexFlat(12, faiss.METRIC_L1), unit), "faiss metric 2, wanted l2 distance or inner product"),
        (lambda unit: indexed(faiss.IndexLSH(12, 16), unit), "compares hashes, not vectors"),
        (lambda unit: faiss.IndexFlatL2(12), "the index is empty"),
        (lambda unit: faiss.IndexBinaryFlat(16), "wanted a faiss index over floating-point vectors"),
        (lambda unit: unit, "index is ndarray, wanted a faiss index"),
        (
            lambda unit: indexed(faiss.IndexPreTransform(faiss.PCAMatrix(12, 6), faiss.IndexFlatL2(6)), unit),
            "searches among transformed vectors",
        ),
    ],
)
def test_an_index_that_has_no_such_vectors_is_refused(make, message, unit, labels):
    with pytest.raises(rg.InputError, match=message):
        rg.Gallery.from_faiss(make(unit), labels)


def test_files_that_are_missing_or_lie_are_named(unit, labels, tmp_path):
    path = tmp_path / "g.faiss"
    with pytest.raises(FileNotFoundError, match="g.faiss` is not there"):
        rg.Gallery.from_faiss(path, labels)
    path.write_bytes(b"no index")
    with pytest.raises(rg.InputError, match="is none that faiss reads"):
        rg.Gallery.from_faiss(path, labels)
    gallery = rg.Gallery(unit, labels)
    gallery.to_faiss(path)
    items = tmp_path / "g.faiss.items.jsonl"
    lines = items.read_text().splitlines()
    assert json.loads(lines[3]) == {"identity": "3", "label": "label 3"}
    for text, message in [
        ("\n".join(lines[1:]), "has 599 items, wanted one for each of 600"),
        ("\n".join(["[]", *lines[1:]]), "a line without label and identity"),
        ("nonsense", "is not lines of JSON"),
    ]:
        items.write_text(text)
        with pytest.raises(rg.InputError, match=message):
            rg.Gallery.from_faiss(path)
    items.unlink()
    with pytest.raises(FileNotFoundError, match="wanted it or the argument `labels`"):
        rg.Gallery.from_faiss(path)
    with pytest.raises(rg.InputError, match="an index has no labels of its own"):
        rg.Gallery.from_faiss(gallery.to_faiss())
    with pytest.raises(rg.InputError, match="has 3 labels|3 labels"):
        rg.Gallery.from_faiss(path, labels[:3])


def test_what_is_said_of_vectors_made_elsewhere_is_held_against_queries(unit, labels, tmp_path):
    gallery = rg.Gallery.from_faiss(rg.Gallery(unit, labels).to_faiss(), labels, sigma=0.25, samples=64, norm_bound=1.0)
    assert (gallery.sigma, gallery.samples) == (0.25, 64)
    samples = unit[:200] + 1e-3 * np.random.default_rng(0).normal(size=(200, 12)).astype("f4")
    samples /= 1.01
    with pytest.raises(rg.InputError, match="was smoothed with sigma 0.25, the queries with 0.5"):
        rg.certify(samples[20:], gallery, "label 0", pilot=samples[:20], sigma=0.5)
    with pytest.raises(rg.InputError, match="has norm bound 1, the queries 3"):
        rg.certify(samples[20:], gallery, "label 0", pilot=samples[:20], sigma=0.25, norm_bound=3)
    gallery.write(tmp_path / "g")
    assert (rg.Gallery.read(tmp_path / "g").sigma, rg.Gallery.read(tmp_path / "g").samples) == (0.25, 64)
    unsaid = rg.Gallery.from_faiss(rg.Gallery(unit, labels).to_faiss(), labels)
    assert (unsaid.sigma, unsaid.samples) == (None, None)


@pytest.mark.parametrize("kind", [pyarrow.list_(pyarrow.float64()), pyarrow.large_list(pyarrow.float32()), pyarrow.list_(pyarrow.float16(), 12)])
def test_arrow_tables_of_others_become_galleries(unit, labels, kind):
    table = pyarrow.table(
        {"id": range(600), "class": labels, "embedding": pyarrow.array([row.astype(kind.value_type.to_pandas_dtype()) for row in unit], kind)}
    )
    names = {"label": "class", "vector": "embedding", "identity": "id"}
    wanted = unit.astype(kind.value_type.to_pandas_dtype()).astype("f4")
    # Also in pieces, and of one of them.
    pieces = pyarrow.concat_tables([table.slice(0, 100), table.slice(100)])
    for found in (rg.Gallery.from_table(table, **names), rg.Gallery.from_table(pieces, **names)):
        assert (found.vectors == wanted).all() and found.identities[599] == "599" and found.labels.tolist() == labels
    batch = rg.Gallery.from_table(table.to_batches()[0].slice(7, 5), sigma=0.1, **names)
    assert batch.identities.tolist() == ["7", "8", "9", "10", "11"] and (batch.vectors == wanted[7:12]).all() and batch.sigma == 0.1


def test_arrow_tables_with_holes_are_refused():
    def table(vectors):
        return pyarrow.table({"label": ["a", "b"], "vector": vectors})

    for vectors, message in [
        ([[1.0, 2.0], None], "a vector of the table is null"),
        ([[1.0, 2.0], [None, 1.0]], "a component of a vector of the table is null"),
        ([[1.0, 2.0], [1.0]], "differ in length"),
        ([1.0, 2.0], "are double, wanted lists of numbers"),
        ([["x"], ["y"]], "wanted real numbers"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            rg.Gallery.from_table(table(vectors))
    with pytest.raises(rg.InputError, match="no column `embedding`, it has label, vector"):
        rg.Gallery.from_table(table([[1.0], [2.0]]), vector="embedding")


def test_lance_tables_come_back_as_they_went(unit, labels, tmp_path):
    lance = pytest.importorskip("lance")
    gallery = rg.Gallery(unit, labels, [f"{row}.png" for row in range(600)])
    written = gallery.to_lance(tmp_path / "t.lance")
    assert isinstance(written, lance.LanceDataset)
    for source in (tmp_path / "t.lance", str(tmp_path / "t.lance"), written):
        assert same(rg.Gallery.from_lance(source), gallery)
    assert rg.Gallery.from_lance(written, "cosine", sigma=0.5).sigma == 0.5
    with pytest.raises(rg.InputError, match="is no Lance table that can be read"):
        rg.Gallery.from_lance(tmp_path / "nowhere")


def test_what_looks_like_a_lance_table_is_read_as_one(unit, labels):
    class Table:  # as a LanceDB table gives its rows
        def to_arrow(self):
            return rg.Gallery(unit, labels).to_arrow()

    assert same(rg.Gallery.from_lance(Table()), rg.Gallery(unit, labels))
    with pytest.raises(rg.InputError, match="table is int, wanted a Lance data set"):
        rg.Gallery.from_lance(3)


def test_a_package_that_is_not_installed_is_named():
    code = (
        "import sys; sys.modules['faiss'] = sys.modules['lance'] = None\n"
        "import retrievalguard as rg\n"
        "gallery = rg.Gallery([[1.0], [2.0]], ['a', 'b'])\n"
        "for call in (gallery.to_faiss, lambda: rg.Gallery.from_lance('x'), lambda: gallery.to_lance('x')):\n"
        "    try:\n"
        "        call()\n"
        "    except rg.MissingPackageError as error:\n"
        "        print(isinstance(error, ImportError), error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert told[0] == "True a faiss index needs the package faiss-cpu, which is not installed: pip install faiss-cpu"
    assert told[1:] == ["True a Lance table needs the package pylance, which is not installed: pip install pylance"] * 2


def test_agreement_counts_what_a_double_loop_counts(unit, labels):
    gallery = rg.Gallery(unit, labels, metric="cosine")
    index = approximate(unit)
    index.nprobe = 1
    queries = np.random.default_rng(8).normal(size=(300, 12)).astype("f4")
    answers = index.search(queries, 1)[1][:, 0]
    nearest = np.argmin(((queries[:, None].astype("f8") - unit.astype("f8")) ** 2).sum(axis=2), axis=1)
    item = int((answers == nearest).sum())
    label = sum(labels[one] == labels[other] for one, other in zip(answers, nearest))
    assert 30 < item < 290 and label > item
    found = rg.agreement(gallery, queries, index)
    assert (found.queries, found.same_item, found.same_label, found.unanswered) == (300, item, label, 0)
    low, high = found.item_interval
    assert low < found.item_share == item / 300 < high and found.label_share == label / 300
    # More lists searched: more agreement; all of them: exact search.
    index.nprobe = 30
    exact = rg.agreement(gallery, queries, index)
    assert (exact.same_item, exact.item_interval[1]) == (300, 1.0) and exact.item_interval[0] > 0.98
    assert f"same item {item / 300:.4f} (95 % interval {low:.4f}" in str(found)


def test_answers_come_as_rows_identities_ids_or_from_a_function(unit, labels):
    names = [f"{row}.png" for row in range(600)]
    gallery = rg.Gallery(unit, labels, names)
    queries = unit[:40]
    rows = list(range(40))
    for answers, ids in [
        (rows, None),
        (np.arange(40), None),
        (np.arange(80).reshape(40, 2) // 2, None),
        ([[row, 0] for row in rows], None),
        (names[:40], None),
        ([row + 7000 for row in rows], [row + 7000 for row in range(600)]),
        (lambda asked: np.arange(len(asked)), None),
    ]:
        assert rg.agreement(gallery, queries, answers, ids=ids).same_item == 40
    graph = faiss.IndexHNSWFlat(12, 16)
    graph.add(unit)
    assert rg.agreement(gallery, queries, graph).item_share > 0.9
    missing = rg.agreement(gallery, queries, [-1, None, *rows[2:]])
    assert (missing.same_item, missing.same_label, missing.unanswered) == (38, 38, 2)


def test_equal_vectors_and_views_of_one_item_are_the_same_item():
    twins = rg.Gallery([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], ["a", "b", "b"])
    found = rg.agreement(twins, [[0.9, 0.0]], [1])
    assert (found.same_item, found.same_label) == (1, 0)
    views = rg.Gallery([[1.0], [2.0], [7.0], [8.0]], list("aabb"), list("1122"), views=["as is", "mirrored"])
    assert rg.agreement(views, [[1.1]], [1]).same_item == 1 and rg.agreement(views, [[1.1]], [2]).same_item == 0


@pytest.mark.parametrize(
    "queries, answers, ids, message",
    [
        ([[1.0, 2.0]], [0, 1], None, "2 answers were given for 1 queries"),
        ([[1.0, 2.0]], [9], None, "answer 0 is 9, which the gallery of 2 rows does not have"),
        ([[1.0, 2.0]], ["nobody"], None, "answer 0 is 'nobody', which the gallery"),
        ([[1.0, 2.0]], [0.5], None, "wanted a row of the gallery or an identity"),
        ([[1.0, 2.0]], [0], [1], "1 ids were given, wanted one for each of the gallery's 2 rows"),
        ([1.0, 2.0], [0], None, "queries have shape \\(2,\\), wanted \\(queries, 2\\)"),
    ],
)
def test_answers_that_do_not_fit_are_refused(queries, answers, ids, message):
    gallery = rg.Gallery([[1.0, 2.0], [3.0, 4.0]], ["a", "b"])
    with pytest.raises(rg.InputError, match=message):
        rg.agreement(gallery, queries, answers, ids=ids)

import re

import numpy as np
from conftest import HERE

PAGE = HERE.parents[2] / "docs" / "approximate-search.md"


def test_the_votes_of_an_index_that_misses_items_are_certified_as_the_page_says():
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    names = {}
    exec(compile(block, str(PAGE), "exec"), names)
    certificate, stored, item_labels = names["certificate"], names["stored"], names["item_labels"]
    assert certificate.certified and certificate.radius > 0.5

    # The index is no exact search: it misses items, and near some of them its label is another one.
    near = stored + np.float32(0.001)
    exact = item_labels[((near[:, None] - stored[None]) ** 2).sum(axis=2).argmin(axis=1)]
    assert (exact == item_labels).all() and (names["index"](near) != exact).any()

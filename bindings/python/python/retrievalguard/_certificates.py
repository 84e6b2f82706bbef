"""Certificates of one query and of many."""

from __future__ import annotations

import json
import math
import sys
import os
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Sequence, Union, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import PathLike
from ._errors import InputError

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    import polars
    import pyarrow

Value = Union[float, int, str, "list[float]"]


class Verdict(str, Enum):
    """Verdict on one query; compares equal to its word. Only ``certified`` is a proof."""

    CERTIFIED = "certified"
    """The retrieved label stays right inside the radius."""
    ABSTAINED = "abstained"
    """The right label was retrieved, but that could not be shown."""
    MISRETRIEVED = "misretrieved"
    """The retriever answers with another label."""

    def __str__(self) -> str:
        return self.value


class Step(NamedTuple):
    """One number behind a verdict."""

    quantity: str
    """What the number is."""
    value: Value
    """The number, count, word or list."""
    text: str
    """The value as the program shows it."""
    statement: str
    """Where the theory says so (`docs/theory.md`)."""
    meaning: Optional[str]
    """What that statement says, in a sentence."""


class Explanation(AbstractSequence[Step]):
    """The chain of numbers behind a verdict: a sequence of steps that prints as text."""

    def __init__(self, heading: str, steps: Sequence[Step]) -> None:
        self._heading, self._steps = heading, tuple(steps)

    @overload
    def __getitem__(self, place: int) -> Step: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, place: Union[int, slice]) -> Union[Step, tuple[Step, ...]]:
        return self._steps[place]

    def __len__(self) -> int:
        return len(self._steps)

    def value(self, quantity: str) -> Optional[Value]:
        """The value of the first step with this name, or None."""
        return next((step.value for step in self._steps if step.quantity == quantity), None)

    def __str__(self) -> str:
        lines = [f"{step.quantity:<28} {step.text:<24} {step.statement}" for step in self._steps]
        return "\n".join([self._heading, *lines])

    __repr__ = __str__


def round_down(radius: float, decimals: int = 4) -> str:
    """A shortened lower bound stays a lower bound."""
    if math.isinf(radius):
        return "unbounded"
    scale = 10**decimals
    return f"{math.floor(radius * scale) / scale:.{decimals}f}"


class AtK(NamedTuple):
    """Verdict for Recall@k."""

    k: int
    verdict: Verdict
    radius: Optional[float]


@dataclass(frozen=True, repr=False)
class Certificate:
    """What one certificate says about one query.

    Attributes
    ----------
    certificate : str
        Its name, ``"half-space"`` for instance.
    verdict : Verdict
        Certified, abstained or misretrieved.
    radius : float or None
        The retriever that the certificate speaks of keeps its answer for every l2 perturbation of the pixels shorter than
        this; None unless certified, infinite if nothing can change it.
    samples : int
        Certifying samples used.
    sigma, alpha : float or None
        Noise level, and the probability that the certificate is wrong; ``alpha`` is None where it is not known.
    identity, label : str or None
        The query and the label that was certified.
    retrieved, retrieved_label : str or None
        The stored item nearest to the mean of the samples.
    nearest_wrong, nearest_wrong_label : str or None
        The nearest item that would be a wrong answer.
    retrieved_view, nearest_wrong_view : str or None
        Which views of these two are nearest, where items have several.
    at_k : tuple of AtK
        Verdicts for Recall@2 and deeper, if they were asked for.
    decision : str or None
        With a target radius: ``"reached"``, ``"capped"`` or ``"hopeless"``.
    plain_retrieved, plain_retrieved_label : str or None
        What the encoder without noise retrieves, about which nothing is proved, where the gallery has clean embeddings.
    asking_again : str or None
        What another question about the same picture means for ``alpha``, where a seed was drawn for this one.
    """

    certificate: str
    verdict: Verdict
    radius: Optional[float]
    samples: int
    sigma: Optional[float]
    alpha: Optional[float] = None
    identity: Optional[str] = None
    label: Optional[str] = None
    retrieved: Optional[str] = None
    retrieved_label: Optional[str] = None
    nearest_wrong: Optional[str] = None
    nearest_wrong_label: Optional[str] = None
    retrieved_view: Optional[str] = None
    nearest_wrong_view: Optional[str] = None
    at_k: tuple[AtK, ...] = ()
    decision: Optional[str] = None
    plain_retrieved: Optional[str] = None
    plain_retrieved_label: Optional[str] = None
    asking_again: Optional[str] = None
    _steps: Optional[tuple[Step, ...]] = field(default=None, compare=False)

    @property
    def certified(self) -> bool:
        """Whether there is a proof."""
        return self.verdict is Verdict.CERTIFIED

    @property
    def retriever(self) -> str:
        """Which retriever the certificate speaks of: ``"mean"``, ``"vote"``, ``"pairwise"`` or, without noise, ``"plain"``."""
        if self.certificate.startswith("lipschitz"):
            return "plain"
        return self.certificate if self.certificate in ("vote", "pairwise") else "mean"

    @property
    def statement(self) -> str:
        """What is proved, or that nothing is, in a sentence."""
        item = f"item {self.retrieved}" if self.certified else "the item"
        what = item if self.label is None else f"label {self.label}"
        samples = "" if self.retriever == "plain" else f" after {self.samples} samples"
        if self.verdict is Verdict.MISRETRIEVED:
            return f"misretrieved: the {self.retriever} retriever does not answer {what}"
        if self.radius is None:
            return f"abstained: {what} cannot be guaranteed{samples}"
        size = "" if math.isinf(self.radius) else f" with l2 norm below {round_down(self.radius)}"
        sure = "" if self.alpha is None else f", except with probability {self.alpha:g} over the noise"
        how = f"{self.retriever} retriever" + ("" if self.retriever == "plain" else f", {self.samples} samples")
        return f"{what}: no change of the prepared picture{size} changes it{sure} ({how})"

    def _words(self) -> str:
        name = "" if self.identity is None else f"{self.identity}: "
        radius = "" if self.radius is None else f" within {round_down(self.radius)}"
        return f"{name}{self.certificate} {self.verdict}{radius}, {self.samples} samples"

    def __repr__(self) -> str:
        return f"<Certificate {self._words()}>"

    def explain(self) -> Explanation:
        """The chain of numbers behind the verdict, each with the statement of the theory that it uses.

        Returns
        -------
        Explanation
            A sequence of `Step`; ``print`` shows it as text. With a target radius it is the chain of the test of fixed
            size on the samples that were looked at.

        Raises
        ------
        InputError
            If the certificate comes from a table, which keeps no steps: ``retrievalguard explain`` draws the samples of
            a run again.
        """
        if self._steps is None:
            raise InputError(
                "a table keeps no steps; `retrievalguard explain` draws the query's samples again and shows them"
            )
        decided = "" if self.decision is None else f" (the target radius: {self.decision})"
        return Explanation(self._words() + decided, self._steps)


class _Column(NamedTuple):
    verdicts: list[str]
    radii: list[Optional[float]]
    samples: list[int]


def _is_number(name: str) -> bool:
    return name in ("sigma", "file_scale", "file_rounding") or "_radius" in name


def _in_file(radius: Optional[float], file: tuple[Optional[float], Optional[float]]) -> Optional[float]:
    """A radius in the pixels of the file, as the table has it."""
    scale, rounding = file
    if radius is None or scale is None or rounding is None:
        return None
    left = ((radius - rounding) / scale) * (1.0 - 4.0 * sys.float_info.epsilon)
    return left if left > 0.0 and math.isfinite(left) else None


class Certificates(AbstractSequence[Certificate]):
    """Certificates of many queries, one row for each query and one or several certificates for each row.

    Made by `certify`, `certify_pictures` and `read_certificates`. As a sequence it gives the rows' certificates of the
    usual name: half-space, or the first one there is.

    Examples
    --------
    >>> import numpy as np
    >>> import retrievalguard as rg
    >>> gallery = rg.Gallery([[1.0, 0.0], [-1.0, 0.0]], ["left", "right"])
    >>> def draw(stage, count):  # stands for the embeddings of noisy copies
    ...     return rg.Noise(7, "query", stage).add(np.array([0.5, 0.0]), range(count), sigma=0.1)
    >>> certificates = rg.certify(
    ...     [draw("certify", 1000)] * 2, gallery, ["left", "right"], pilot=[draw("pilot", 200)] * 2, sigma=0.25)
    >>> certificates
    <Certificates half-space: 1 of 2 certified, 0 abstained, 1 misretrieved, mean radius over all queries 0.2330>
    >>> certificates.recall()
    0.5
    >>> certificates.certified_recall([0.0, 0.4, 0.5]).tolist()
    [0.5, 0.5, 0.0]
    >>> certificates.to_pandas().half_space_verdict.tolist()
    ['certified', 'misretrieved']
    """

    def __init__(self, columns: dict[str, Any], rows: Optional[list[dict[str, Certificate]]] = None) -> None:
        self._columns = columns
        self._rows = rows
        self._table = {
            column["certificate"]: _Column(column["verdicts"], column["radii"], column["samples"])
            for column in columns["certificates"]
        }
        self.skipped: list[tuple[str, str]] = []
        """Broken pictures that a run left out: identity and reason."""
        self.resumed: int = 0
        """Queries that an earlier, interrupted run had done already."""

    @property
    def sigma(self) -> Optional[float]:
        """Noise level of the queries; None for certificates that need no noise."""
        sigma = self._columns["sigma"]
        return None if sigma is None else float(sigma)

    @property
    def alpha(self) -> Optional[float]:
        """Failure probability of one certificate, if it is known."""
        alpha = self.run.get("alpha")
        return None if alpha is None else float(alpha)

    @property
    def run(self) -> dict[str, Any]:
        """What the certificates were made with; empty if the table does not say."""
        text = self._columns["run"]
        return json.loads(text) if text else {}

    @property
    def certificates(self) -> tuple[str, ...]:
        """Names of the certificates of each row."""
        return tuple(self._table)

    @property
    def identities(self) -> NDArray[np.object_]:
        """Names of the queries."""
        return np.array(self._columns["identities"], dtype=object)

    @property
    def labels(self) -> NDArray[np.object_]:
        """Labels that a retrieval must have to be right."""
        return np.array(self._columns["labels"], dtype=object)

    def _name(self, certificate: Optional[str]) -> str:
        if certificate is None:
            return "half-space" if "half-space" in self._table else next(iter(self._table))
        if certificate not in self._table:
            raise InputError(f"there is no certificate {certificate} here, wanted one of {', '.join(self._table)}")
        return certificate

    def verdicts(self, certificate: Optional[str] = None) -> NDArray[np.object_]:
        """The verdicts' words, in the order of the rows."""
        return np.array(self._table[self._name(certificate)].verdicts, dtype=object)

    def radii(self, certificate: Optional[str] = None) -> NDArray[np.float64]:
        """Certified radii: zero without a certificate, infinite where unbounded.

        Parameters
        ----------
        certificate : str, optional
            Its name; half-space, or the first one there is, by default.

        Returns
        -------
        numpy.ndarray
            float64.
        """
        radii = self._table[self._name(certificate)].radii
        return np.array([0.0 if radius is None else radius for radius in radii], dtype=np.float64)

    def row(self, place: int) -> dict[str, Certificate]:
        """All certificates of one row, by name."""
        place = range(len(self))[place]
        if self._rows is not None:
            return dict(self._rows[place])
        columns = self._columns
        return {
            name: Certificate(
                certificate=name,
                verdict=Verdict(column.verdicts[place]),
                radius=column.radii[place],
                samples=column.samples[place],
                sigma=self.sigma,
                alpha=self.alpha,
                identity=columns["identities"][place],
                label=columns["labels"][place],
                retrieved=columns["retrieved"][place],
                retrieved_label=columns["retrieved_labels"][place],
                nearest_wrong=columns["nearest_wrong"][place],
                nearest_wrong_label=columns["nearest_wrong_labels"][place],
                retrieved_view=columns["retrieved_views"][place],
                nearest_wrong_view=columns["nearest_wrong_views"][place],
                plain_retrieved=columns["plain_retrieved"][place],
                plain_retrieved_label=columns["plain_retrieved_labels"][place],
            )
            for name, column in self._table.items()
        }

    def _attach_at_k(self, deeper: list[list[tuple[str, Optional[float]]]]) -> None:
        """Adds what a run says about Recall@2 and deeper, which its table has no room for."""
        if any(deeper):
            self._rows = [
                {
                    **row,
                    "half-space": replace(
                        row["half-space"],
                        at_k=tuple(AtK(k, Verdict(word), radius) for k, (word, radius) in enumerate(verdicts, 2)),
                    ),
                }
                for row, verdicts in ((self.row(place), verdicts) for place, verdicts in enumerate(deeper))
            ]

    @overload
    def __getitem__(self, place: int) -> Certificate: ...
    @overload
    def __getitem__(self, place: slice) -> list[Certificate]: ...
    def __getitem__(self, place: Union[int, slice]) -> Union[Certificate, list[Certificate]]:
        if isinstance(place, slice):
            return [self[row] for row in range(len(self))[place]]
        return self.row(place)[self._name(None)]

    def __len__(self) -> int:
        return len(self._columns["identities"])

    def __iter__(self) -> Iterator[Certificate]:
        return (self[place] for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Certificates):
            return NotImplemented
        return self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not self._table:
            return "<Certificates: none>"
        name = self._name(None)
        column, radii = self._table[name], self.radii(name)
        certified, abstained, wrong = (column.verdicts.count(word) for word in Verdict)
        mean = round_down(float(radii.mean())) if len(self) else "0"
        return (
            f"<Certificates {name}: {certified} of {len(self)} certified, {abstained} abstained, {wrong} misretrieved, "
            f"mean radius over all queries {mean}>"
        )

    def recall(self, certificate: Optional[str] = None) -> float:
        """Recall@1 of the smoothed retriever: queries retrieved rightly, shown or not.

        Parameters
        ----------
        certificate : str, optional
            ``"vote"`` and ``"pairwise"`` speak of other retrievers than the rest.

        Returns
        -------
        float
            A share of all queries.
        """
        verdicts = self._table[self._name(certificate)].verdicts
        self._check_rows()
        return sum(verdict != "misretrieved" for verdict in verdicts) / len(verdicts)

    @property
    def plain_recall(self) -> Optional[float]:
        """Recall@1 of the encoder without noise, about which nothing is proved; None if a row does not say it."""
        found = self._columns["plain_retrieved_labels"]
        if not found or any(label is None for label in found):
            return None
        right = [bool(one == other) for one, other in zip(found, self._columns["labels"])]
        return sum(right) / len(right)

    def certified_recall(self, radii: ArrayLike, certificate: Optional[str] = None) -> NDArray[np.float64]:
        """Recall@1(r): the share of all queries whose certified radius exceeds each of the radii.

        Parameters
        ----------
        radii : array_like
            One radius or several, at least 0.
        certificate : str, optional
            Its name; half-space, or the first one there is, by default.

        Returns
        -------
        numpy.ndarray
            Shares, in the shape of `radii`.
        """
        wanted = np.asarray(radii, dtype=np.float64)
        if np.isnan(wanted).any() or (wanted < 0).any():
            raise InputError("a radius is negative or NaN, wanted numbers of at least 0")
        self._check_rows()
        ascending = np.sort(self.radii(certificate))
        # Rows without a certificate count as zero, which exceeds no radius.
        above = len(ascending) - np.searchsorted(ascending, wanted, side="right")
        return np.asarray(above / len(ascending), dtype=np.float64)

    def summary(self, certificate: Optional[str] = None) -> dict[str, float]:
        """Shares of all queries and the mean radius.

        Parameters
        ----------
        certificate : str, optional
            Its name; half-space, or the first one there is, by default.

        Returns
        -------
        dict
            ``queries``, ``recall``, ``certified``, ``rejected`` (right but not shown), ``misretrieved`` and
            ``mean_radius`` over all queries, zero where there is none.
        """
        name = self._name(certificate)
        verdicts = self._table[name].verdicts
        self._check_rows()

        def share(word: str) -> float:
            return verdicts.count(word) / len(verdicts)

        return {
            "queries": len(verdicts),
            "recall": self.recall(name),
            "certified": share("certified"),
            "rejected": share("abstained"),
            "misretrieved": share("misretrieved"),
            "mean_radius": float(self.radii(name).mean()),
        }

    def _check_rows(self) -> None:
        if len(self) == 0:
            raise InputError("no verdicts were given, wanted at least one query")

    def plot(
        self, ax: Optional[matplotlib.axes.Axes] = None, *, interval: bool = False, **style: Any
    ) -> matplotlib.axes.Axes:
        """Draws Recall@1(r), one curve for each certificate.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; the current axes by default.
        interval : bool
            Whether to shade the 95 % Clopper-Pearson interval over the choice of queries.
        **style
            Passed to ``Axes.step``.

        Returns
        -------
        matplotlib.axes.Axes
        """
        self._check_rows()
        if ax is None:
            import matplotlib.pyplot

            ax = matplotlib.pyplot.gca()
        for name in self._table:
            radii = self.radii(name)
            finite = np.unique(radii[np.isfinite(radii)])
            far = 1.05 * finite[-1] if len(finite) and finite[-1] > 0 else 1.0
            across = np.unique(np.concatenate([[0.0], finite, [far]]))
            recall = self.certified_recall(across, name)
            (line,) = ax.step(across, recall, where="post", **{"label": name, **style})
            if interval:
                counts = np.rint(recall * len(self)).astype(int).tolist()
                ends = np.array(_native.intervals(counts, len(self)))
                ax.fill_between(across, ends[:, 0], ends[:, 1], step="post", alpha=0.2, color=line.get_color())
        ax.set(xlabel="radius r (l2, pixels in [0, 1])", ylabel="Recall@1(r)", ylim=(0, 1.02))
        ax.set_xlim(left=0)
        ax.legend()
        return ax

    def _fields(self) -> dict[str, list[Any]]:
        """The columns of `certificates.parquet`, in their order."""
        columns, rows = self._columns, len(self)
        table: dict[str, list[Any]] = {
            "identity": columns["identities"],
            "label": columns["labels"],
            "retrieved": columns["retrieved"],
            "retrieved_label": columns["retrieved_labels"],
            "nearest_wrong": [name or "" for name in columns["nearest_wrong"]],
            "nearest_wrong_label": [name or "" for name in columns["nearest_wrong_labels"]],
        }
        sigma = self.sigma
        if sigma is not None:
            table["sigma"] = [sigma] * rows
        for name, values in (
            ("retrieved_view", columns["retrieved_views"]),
            ("nearest_wrong_view", columns["nearest_wrong_views"]),
            ("plain_retrieved", columns["plain_retrieved"]),
            ("plain_retrieved_label", columns["plain_retrieved_labels"]),
            ("file_scale", columns["file_scales"]),
            ("file_rounding", columns["file_roundings"]),
        ):
            if any(value is not None for value in values):
                table[name] = values
        in_files = list(zip(columns["file_scales"], columns["file_roundings"]))
        for name, column in self._table.items():
            start = name.replace("-", "_")
            finite = [None if radius is None or math.isinf(radius) else radius for radius in column.radii]
            table[f"{start}_verdict"] = column.verdicts
            table[f"{start}_radius"] = finite
            if sigma is not None:
                table[f"{start}_radius_in_sigmas"] = [None if r is None else r / sigma for r in finite]
            table[f"{start}_radius_in_8bit_steps"] = [None if r is None else r * 255.0 for r in finite]
            if "file_scale" in table:
                table[f"{start}_file_radius"] = [_in_file(*pair) for pair in zip(finite, in_files)]
            table[f"{start}_unbounded"] = [radius is not None and math.isinf(radius) for radius in column.radii]
            table[f"{start}_samples"] = column.samples
        return table

    def to_pandas(self) -> pandas.DataFrame:
        """The columns of ``certificates.parquet``.

        Returns
        -------
        pandas.DataFrame
            A radius is missing where there is none or where it is unbounded (``..._unbounded``).
        """
        import pandas

        numbers = {
            name: np.array([np.nan if value is None else value for value in values], dtype=np.float64)
            for name, values in self._fields().items()
            if _is_number(name)
        }
        return pandas.DataFrame({name: numbers.get(name, values) for name, values in self._fields().items()})

    def to_polars(self) -> polars.DataFrame:
        """The columns of ``certificates.parquet``.

        Returns
        -------
        polars.DataFrame
            A radius is null where there is none or where it is unbounded (``..._unbounded``).
        """
        import polars

        fields = self._fields()
        kinds: dict[str, Any] = {name: getattr(polars, kind) for name, kind in self._kinds(fields).items()}
        return polars.DataFrame(fields, schema=kinds)

    def to_arrow(self) -> pyarrow.Table:
        """The columns of ``certificates.parquet``.

        Returns
        -------
        pyarrow.Table
            A radius is null where there is none or where it is unbounded (``..._unbounded``).
        """
        import pyarrow

        words = {"String": "string", "Float64": "float64", "Boolean": "bool_", "Int64": "int64"}
        fields = self._fields()
        kinds = {name: getattr(pyarrow, words[kind])() for name, kind in self._kinds(fields).items()}
        return pyarrow.table(fields, schema=pyarrow.schema(list(kinds.items())))

    @staticmethod
    def _kinds(fields: dict[str, list[Any]]) -> dict[str, str]:
        def kind(name: str) -> str:
            if name.endswith("_samples"):
                return "Int64"
            if name.endswith("_unbounded"):
                return "Boolean"
            return "Float64" if _is_number(name) else "String"

        return {name: kind(name) for name in fields}

    def write(self, path: PathLike) -> None:
        """Writes a table that `read_certificates` and the program ``retrievalguard evaluate`` read.

        Parameters
        ----------
        path : path_like
            Parquet, or JSON lines if it ends in ``.jsonl``; their record, by which they are read again, is written
            beside them as ``.jsonl.json``.
        """
        _native.write_certificates(os.fspath(path), self._columns)


def read_certificates(path: PathLike, *, unverified: bool = False) -> Certificates:
    """Reads a table of certificates and holds it against the digest that was written with it.

    Parameters
    ----------
    path : path_like
        ``certificates.parquet``, a ``.jsonl`` file with its record beside it, or the directory of a run.
    unverified : bool
        Whether to read a table that has no digest, as those of earlier versions and of other programs do.
        One whose digest is there and wrong is refused all the same.

    Returns
    -------
    Certificates

    Examples
    --------
    >>> import retrievalguard as rg
    >>> try:
    ...     rg.read_certificates("nowhere.parquet")
    ... except FileNotFoundError as error:
    ...     print(error)
    table `nowhere.parquet` cannot be read: No such file or directory (os error 2)
    """
    place = os.fspath(path)
    if os.path.isdir(place):
        place = os.path.join(place, "certificates.parquet")
    return Certificates(_native.read_certificates(place, unverified))

"""Image retrieval whose answers come with a proof.

A retrieval system embeds a picture with an encoder ``h`` and answers with the nearest item of a labelled gallery.
RetrievalGuard embeds many noisy copies of the query, searches with their mean, and computes a radius inside which no l2
perturbation of the pixels changes the retrieved label. The proof holds for any encoder of bounded norm that treats each
picture by itself; it may fail with a probability ``alpha`` that you choose.

>>> import numpy as np
>>> import retrievalguard as rg
>>> def encode(batch):  # any function from pictures to rows of norm at most 1
...     flat = batch.reshape(len(batch), -1)
...     return flat / np.linalg.norm(flat, axis=1, keepdims=True)
>>> rng = np.random.default_rng(7)
>>> pictures = {label: rng.uniform(size=(3, 8, 8)).astype("f4") for label in ("cat", "dog")}
>>> gallery = rg.Gallery([encode(p[None])[0] for p in pictures.values()], list(pictures))
>>> common = dict(sigma=0.25, seed=7, identity="query", progress=False)
>>> query = np.clip(pictures["cat"] + 0.05, 0, 1)
>>> pilot = rg.smooth(encode, query, samples=200, stage="pilot", **common)
>>> samples = rg.smooth(encode, query, samples=1000, **common)
>>> rg.certify(samples, gallery, "cat", pilot=pilot, sigma=0.25).verdict
<Verdict.CERTIFIED: 'certified'>
"""

from typing import TYPE_CHECKING

from ._agreement import Agreement, agreement
from ._certificates import AtK, Certificate, Certificates, Explanation, Step, Verdict, read_certificates
from ._certify import ALL, LIPSCHITZ, certify
from ._embeddings import certify_embeddings
from ._encoder import Encoder
from ._errors import EncoderError, FileError, InputError, MissingFileError, MissingPackageError, RetrievalGuardError
from ._gallery import Gallery
from ._noise import Noise
from ._perturb import Perturbation, perturb
from ._picture import certify_picture
from ._pipeline import certify_pictures, index
from ._planner import largest_radius, samples_needed
from ._receipts import Verification, verify_receipt
from ._recommend import EstimatedShare, Recommendation, Setting, recommend
from ._runs import Run, Worker, share_pictures
from ._smooth import smooth

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        # Read when it is asked for: what reads it takes a quarter of the import.
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("retrievalguard")
        except PackageNotFoundError:
            return "unknown"

__all__ = [
    "ALL",
    "Agreement",
    "AtK",
    "Certificate",
    "Certificates",
    "Encoder",
    "EncoderError",
    "EstimatedShare",
    "Explanation",
    "FileError",
    "Gallery",
    "InputError",
    "LIPSCHITZ",
    "MissingFileError",
    "MissingPackageError",
    "Noise",
    "Perturbation",
    "Recommendation",
    "RetrievalGuardError",
    "Run",
    "Setting",
    "Step",
    "Verdict",
    "Verification",
    "Worker",
    "agreement",
    "certify",
    "certify_embeddings",
    "certify_picture",
    "certify_pictures",
    "index",
    "largest_radius",
    "perturb",
    "read_certificates",
    "recommend",
    "samples_needed",
    "share_pictures",
    "smooth",
    "verify_receipt",
]
